"""The 225 features: how many, causal to the bit, finite, scale-free, and equal to plain loops over the last bars."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.helpers import BEGIN, MINUTE, bar_columns
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS, MEMORY, bar_features, clock_features


def features_of(bars: dict[str, np.ndarray]) -> np.ndarray:
    return bar_features(bars).T  # [bars, features]


BARS = {name: values.astype(np.float64) for name, values in bar_columns(200, seed=1).items() if name != "ts_event"}
FEATURES = features_of(BARS)


def column(name: str, features: np.ndarray = FEATURES) -> np.ndarray:
    return features[:, BAR_COLUMNS.index(name)]


def test_225_names() -> None:
    assert len(BAR_COLUMNS) == 214
    assert len(CLOCK_COLUMNS) == 11
    assert len(set(BAR_COLUMNS + CLOCK_COLUMNS)) == 225
    assert FEATURES.shape == (200, 214)


@given(st.integers(1, 199))
@settings(max_examples=25, deadline=None)
def test_a_prefix_gives_the_same_bits(count: int) -> None:
    assert np.array_equal(features_of({name: values[:count] for name, values in BARS.items()}), FEATURES[:count])


@given(st.integers(1, 140))
@settings(max_examples=10, deadline=None)
def test_nothing_but_the_age_of_the_segment_remembers_more_than_51_bars(dropped: int) -> None:
    suffix = features_of({name: values[dropped:] for name, values in BARS.items()})
    forgetful = [index for index, name in enumerate(BAR_COLUMNS) if name != "bars_in_segment"]
    assert np.array_equal(suffix[MEMORY - 1 :, forgetful], FEATURES[dropped + MEMORY - 1 :, forgetful])


@given(seed=st.integers(0, 10_000), count=st.integers(1, 80))
@settings(max_examples=25, deadline=None)
def test_finite_from_the_first_bar_on(seed: int, count: int) -> None:
    bars = {name: values.astype(np.float64) for name, values in bar_columns(count, seed).items() if name != "ts_event"}
    assert np.isfinite(features_of(bars)).all()


def test_neutral_values_in_a_market_that_stands_still() -> None:
    still = {name: np.full(60, 4321.75) for name in ("open", "high", "low", "close")} | {"volume": np.zeros(60)}
    features = features_of(still)
    special = {"zero_volume": 1.0, "bars_in_segment": np.log1p(59)}
    for name, value in zip(BAR_COLUMNS, features[-1], strict=True):
        stem, _, window = name.rpartition("_")
        if stem in ("rsi", "mfi", "percent_b", "williams"):
            expected = 0.5
        elif stem == "volume_newer_half":
            expected = int(window) // 2 / int(window)
        else:
            expected = special.get(name, 0.0)
        assert value == pytest.approx(expected, abs=1e-15), name


def test_independent_of_the_level_of_prices_and_the_unit_of_volume() -> None:
    scaled = {name: values * (1000 if name == "volume" else 0.01) for name, values in BARS.items()}
    np.testing.assert_allclose(features_of(scaled), FEATURES, rtol=1e-6, atol=1e-9)


def test_no_two_columns_say_the_same() -> None:
    spread = FEATURES[60:, FEATURES[60:].std(axis=0) > 0]
    alike = np.abs(np.corrcoef(spread.T) - np.eye(spread.shape[1]))
    assert alike.max() < 0.9999


class Past(NamedTuple):
    """The bars up to one bar, at which each feature is computed again."""

    open: np.ndarray
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    volume: np.ndarray


def share(part: float, whole: float, neutral: float) -> float:
    return part / whole if whole else neutral


def returns(close: np.ndarray, window: int) -> np.ndarray:
    return np.diff(np.log(close[-window - 1 :]))


def true_ranges(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> np.ndarray:
    return np.array([max(high[-i], close[-i - 1]) - min(low[-i], close[-i - 1]) for i in range(window, 0, -1)])


def ema(x: np.ndarray, span: float) -> float:
    weights = (1 - 2 / (span + 1)) ** np.arange(50)
    return float((weights * x[::-1][:50]).sum() / weights.sum())


def garman_klass(past: Past) -> np.ndarray:
    return np.log(past.high / past.low) ** 2 / 2 - (2 * np.log(2) - 1) * np.log(past.close / past.open) ** 2


def rogers_satchell(past: Past) -> np.ndarray:
    upper = np.log(past.high / past.close) * np.log(past.high / past.open)
    return upper + np.log(past.low / past.close) * np.log(past.low / past.open)


def z_score(x: np.ndarray) -> float:
    return 0.0 if np.ptp(x) == 0 else (x[-1] - x.mean()) / x.std()


def rsi(close: np.ndarray, window: int) -> float:
    r = returns(close, 50)
    up, down = ema(np.maximum(r, 0), 2 * window - 1), ema(np.maximum(-r, 0), 2 * window - 1)
    return share(up, up + down, 0.5)


def cmo(close: np.ndarray, window: int) -> float:
    r = returns(close, window)
    return share(r.sum(), np.abs(r).sum(), 0)


def mfi(high: np.ndarray, low: np.ndarray, close: np.ndarray, volume: np.ndarray, window: int) -> float:
    typical = (high + low + close) / 3
    inflow = sum(typical[-i] * volume[-i] for i in range(1, window + 1) if typical[-i] > typical[-i - 1])
    outflow = sum(typical[-i] * volume[-i] for i in range(1, window + 1) if typical[-i] < typical[-i - 1])
    return share(inflow, inflow + outflow, 0.5)


def directional(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> tuple[float, float]:
    plus = minus = 0.0
    for i in range(1, window + 1):
        up, down = high[-i] - high[-i - 1], low[-i - 1] - low[-i]
        plus += up if up > max(down, 0) else 0
        minus += down if down > max(up, 0) else 0
    moved = true_ranges(high, low, close, window).sum()
    return share(plus, moved, 0), share(minus, moved, 0)


def adx(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> float:
    values = []
    for back in range(window):
        stop = len(close) - back
        plus, minus = directional(high[:stop], low[:stop], close[:stop], window)
        values.append(share(abs(plus - minus), plus + minus, 0))
    return float(np.mean(values))


def obv_change(close: np.ndarray, volume: np.ndarray, window: int) -> float:
    return share((np.sign(np.diff(close[-window - 1 :])) * volume[-window:]).sum(), volume[-window:].sum(), 0)


def vwap_distance(high: np.ndarray, low: np.ndarray, close: np.ndarray, volume: np.ndarray, window: int) -> float:
    if volume[-window:].sum() == 0:
        return 0.0
    return float(np.log(close[-1] / (((high + low + close) / 3 * volume)[-window:].sum() / volume[-window:].sum())))


def corwin_schultz(high: np.ndarray, low: np.ndarray, window: int) -> float:
    spreads = []
    for i in range(1, window + 1):
        beta = np.log(high[-i] / low[-i]) ** 2 + np.log(high[-i - 1] / low[-i - 1]) ** 2
        gamma = np.log(max(high[-i], high[-i - 1]) / min(low[-i], low[-i - 1])) ** 2
        root = 3 - 2 * 2**0.5
        alpha = ((2 * beta) ** 0.5 - beta**0.5) / root - (gamma / root) ** 0.5
        spreads.append(max(2 * (np.exp(alpha) - 1) / (1 + np.exp(alpha)), 0))
    return float(np.mean(spreads))


def kyle(close: np.ndarray, volume: np.ndarray, window: int) -> float:
    signed = np.sign(returns(close, window)) * volume[-window:]
    return share((returns(close, window) * signed).mean(), (signed**2).mean() ** 0.5, 0)


def signed_volume(high: np.ndarray, low: np.ndarray, close: np.ndarray, volume: np.ndarray, window: int) -> float:
    at = [share(2 * close[-i] - high[-i] - low[-i], high[-i] - low[-i], 0) for i in range(window, 0, -1)]
    return share((np.array(at) * volume[-window:]).sum(), volume[-window:].sum(), 0)


def amihud(close: np.ndarray, volume: np.ndarray, window: int) -> float:
    impacts = [share(abs(r), size, 0) for r, size in zip(returns(close, window), volume[-window:], strict=True)]
    return float(np.mean(impacts) * volume[-window:].mean())


def autocorrelation(close: np.ndarray, window: int) -> float:
    r = returns(close, window)
    return share((r[1:] * r[:-1]).sum(), (r**2).sum(), 0)


ORACLES: dict[str, Callable[[Past, int], float]] = {
    "log_return": lambda past, w: np.log(past.close[-1] / past.close[-1 - w]),
    "parkinson": lambda past, w: (np.log(past.high / past.low)[-w:] ** 2).mean() ** 0.5 / (4 * np.log(2)) ** 0.5,
    "garman_klass": lambda past, w: garman_klass(past)[-w:].mean() ** 0.5,
    "rogers_satchell": lambda past, w: rogers_satchell(past)[-w:].mean() ** 0.5,
    "close_volatility": lambda past, w: (returns(past.close, w) ** 2).mean() ** 0.5,
    "bipower": lambda past, w: (np.pi / 2 * np.abs(returns(past.close, w)[1:] * returns(past.close, w)[:-1]).mean()) ** 0.5,
    "semivariance_up": lambda past, w: (np.maximum(returns(past.close, w), 0) ** 2).mean() ** 0.5,
    "semivariance_down": lambda past, w: (np.minimum(returns(past.close, w), 0) ** 2).mean() ** 0.5,
    "skew": lambda past, w: share((returns(past.close, w) ** 3).mean(), (returns(past.close, w) ** 2).mean() ** 1.5, 0),
    "kurtosis": lambda past, w: share((returns(past.close, w) ** 4).mean(), (returns(past.close, w) ** 2).mean() ** 2, 3) - 3,
    "atr": lambda past, w: true_ranges(past.high, past.low, past.close, w).mean() / past.close[-1],
    "sma_distance": lambda past, w: np.log(past.close[-1]) - np.log(past.close[-w:]).mean(),
    "ema_distance": lambda past, w: np.log(past.close[-1]) - ema(np.log(past.close), w),
    "slope": lambda past, w: np.polyfit(np.arange(w), np.log(past.close[-w:]), 1)[0],
    "z_score": lambda past, w: z_score(np.log(past.close[-w:])),
    "rsi": lambda past, w: rsi(past.close, w),
    "cmo": lambda past, w: cmo(past.close, w),
    "mfi": lambda past, w: mfi(past.high, past.low, past.close, past.volume, w),
    "adx": lambda past, w: adx(past.high, past.low, past.close, w),
    "plus_di": lambda past, w: directional(past.high, past.low, past.close, w)[0],
    "minus_di": lambda past, w: directional(past.high, past.low, past.close, w)[1],
    "percent_b": lambda past, w: 0.5 + share(past.close[-1] - past.close[-w:].mean(), 4 * past.close[-w:].std(), 0),
    "band_width": lambda past, w: 4 * past.close[-w:].std() / past.close[-w:].mean(),
    "donchian": lambda past, w: np.log(past.high[-w:].max() / past.low[-w:].min()),
    "aroon": lambda past, w: (np.argmin(past.low[-w - 1 :][::-1]) - np.argmax(past.high[-w - 1 :][::-1])) / w,
    "williams": lambda past, w: share(past.high[-w:].max() - past.close[-1], past.high[-w:].max() - past.low[-w:].min(), 0.5),
    "volume_z": lambda past, w: share(past.volume[-1] - past.volume[-w:].mean(), past.volume[-w:].std(), 0),
    "volume_ratio": lambda past, w: np.log(share(past.volume[-1] + 0.01 * past.volume[-w:].mean(), 1.01 * past.volume[-w:].mean(), 1)),
    "volume_newer_half": lambda past, w: share(past.volume[-(w // 2) :].sum(), past.volume[-w:].sum(), w // 2 / w),
    "obv_change": lambda past, w: obv_change(past.close, past.volume, w),
    "vwap_distance": lambda past, w: vwap_distance(past.high, past.low, past.close, past.volume, w),
    "roll": lambda past, w: 2 * max(-(returns(past.close, w)[1:] * returns(past.close, w)[:-1]).mean(), 0) ** 0.5,
    "amihud": lambda past, w: amihud(past.close, past.volume, w),
    "corwin_schultz": lambda past, w: corwin_schultz(past.high, past.low, w),
    "kyle": lambda past, w: kyle(past.close, past.volume, w),
    "signed_volume": lambda past, w: signed_volume(past.high, past.low, past.close, past.volume, w),
    "autocorrelation": lambda past, w: autocorrelation(past.close, w),
}


@pytest.mark.parametrize("stem", ORACLES)
def test_equal_to_a_plain_loop(stem: str) -> None:
    names = [name for name in BAR_COLUMNS if name.rpartition("_")[0] == stem]
    assert names
    for name in names:
        window = int(name.rpartition("_")[2])
        for at in (50, 51, 77, 123, 160, 199):
            expected = ORACLES[stem](Past(**{key: values[: at + 1] for key, values in BARS.items()}), window)
            assert column(name)[at] == pytest.approx(expected, rel=1e-6, abs=1e-12), (name, at)


def test_the_rest_by_hand() -> None:
    hand = {
        "open": np.array([100.0, 101.0, 104.0]),
        "high": np.array([102.0, 105.0, 104.0]),
        "low": np.array([99.0, 100.0, 104.0]),
        "close": np.array([101.0, 103.0, 104.0]),
        "volume": np.array([7.0, 0.0, 9.0]),
    }
    features = features_of(hand)
    expected = {
        "body": np.log(103 / 101),
        "upper_shadow": np.log(105 / 103),
        "lower_shadow": np.log(101 / 100),
        "range": np.log(105 / 100),
        "gap": 0.0,
        "true_range": np.log1p(5 / 103),
        "close_location": (103 - 100 - (105 - 103)) / 5,
        "body_share": 2 / 5,
        "direction": 1.0,
        "zero_volume": 1.0,
        "bars_in_segment": np.log(2),
    }
    for name, value in expected.items():
        assert column(name, features)[1] == pytest.approx(value, abs=1e-14), name
    flat = {"body": 0, "range": 0, "gap": np.log(104 / 103), "true_range": np.log1p(1 / 104), "close_location": 0, "body_share": 0}
    for name, value in flat.items():
        assert column(name, features)[2] == pytest.approx(value, abs=1e-14), name


@pytest.mark.parametrize("fast, slow", [(6, 13), (12, 26), (24, 50)])
def test_macd_and_ppo(fast: int, slow: int) -> None:
    for at in (60, 150):
        high, low, close = (BARS[key][: at + 1] for key in ("high", "low", "close"))
        between = ema(close, fast) - ema(close, slow)
        assert column(f"macd_{fast}_{slow}")[at] == pytest.approx(between / true_ranges(high, low, close, 50).mean(), rel=1e-7)
        assert column(f"ppo_{fast}_{slow}")[at] == pytest.approx(ema(close, fast) / ema(close, slow) - 1, rel=1e-7, abs=1e-14)


def test_the_clock_knows_the_future() -> None:
    times = BEGIN + MINUTE * np.arange(3000)
    features = clock_features(times)
    assert features.shape == (3000, 11)
    assert np.abs(features).max() <= 1
    assert np.array_equal(clock_features(times[2990:]), features[2990:])
    at_six = dict(zip(CLOCK_COLUMNS, clock_features(np.array([BEGIN + 360 * MINUTE]))[0], strict=True))
    assert at_six["hour_sin_1"] == pytest.approx(1)  # a quarter of the day
    assert at_six["hour_cos_2"] == pytest.approx(-1)  # half of the half day
    assert at_six["minute_cos_1"] == pytest.approx(1)
    assert at_six["week_sin_1"] == pytest.approx(np.sin(2 * np.pi / 28))  # Monday, a quarter of a day into seven
    assert at_six["day_of_month"] == pytest.approx(7.25 / 31)
    assert at_six["day_of_year_sin_1"] == pytest.approx(np.sin(2 * np.pi * 7.25 / 366))


def test_the_clock_of_a_zone() -> None:
    at_six_in_chicago = np.array([BEGIN + 720 * MINUTE])  # 12:00 UTC in winter
    assert clock_features(at_six_in_chicago, "America/Chicago")[0, CLOCK_COLUMNS.index("hour_sin_1")] == pytest.approx(1)
