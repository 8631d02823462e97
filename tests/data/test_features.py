"""The 225 features: how many, causal to the bit, finite, scale-free, and equal to plain loops over the last bars."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.helpers import BEGIN, MINUTE, bar_columns
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS, MEMORY, bar_features, clock_features

BARS = {name: values.astype(np.float64) for name, values in bar_columns(200, seed=1).items() if name != "ts_event"}
FEATURES = bar_features(BARS)


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
    assert np.array_equal(bar_features({name: values[:count] for name, values in BARS.items()}), FEATURES[:count])


@given(st.integers(1, 140))
@settings(max_examples=10, deadline=None)
def test_nothing_but_the_age_of_the_segment_remembers_more_than_51_bars(dropped: int) -> None:
    suffix = bar_features({name: values[dropped:] for name, values in BARS.items()})
    forgetful = [index for index, name in enumerate(BAR_COLUMNS) if name != "bars_in_segment"]
    assert np.array_equal(suffix[MEMORY - 1 :, forgetful], FEATURES[dropped + MEMORY - 1 :, forgetful])


@given(seed=st.integers(0, 10_000), count=st.integers(1, 80))
@settings(max_examples=25, deadline=None)
def test_finite_from_the_first_bar_on(seed: int, count: int) -> None:
    bars = {name: values.astype(np.float64) for name, values in bar_columns(count, seed).items() if name != "ts_event"}
    assert np.isfinite(bar_features(bars)).all()


def test_neutral_values_in_a_market_that_stands_still() -> None:
    still = {name: np.full(60, 4321.75) for name in ("open", "high", "low", "close")} | {"volume": np.zeros(60)}
    features = bar_features(still)
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
    np.testing.assert_allclose(bar_features(scaled), FEATURES, rtol=1e-6, atol=1e-9)


def test_real_bars_give_no_two_equal_columns() -> None:
    spread = FEATURES[60:, FEATURES[60:].std(axis=0) > 0]
    alike = np.abs(np.corrcoef(spread.T) - np.eye(spread.shape[1]))
    assert alike.max() < 0.9999


# Each feature again, at one bar, from the bars up to it: o, h, l, c, v end at that bar, and w is the window.
Oracle = Callable[..., float]


def share(part: float, whole: float, neutral: float) -> float:
    return part / whole if whole else neutral


def returns(c: np.ndarray, w: int) -> np.ndarray:
    return np.diff(np.log(c[-w - 1 :]))


def true_ranges(h: np.ndarray, l: np.ndarray, c: np.ndarray, w: int) -> np.ndarray:  # noqa: E741
    return np.array([max(h[-i], c[-i - 1]) - min(l[-i], c[-i - 1]) for i in range(w, 0, -1)])


def ema(x: np.ndarray, span: float) -> float:
    weights = (1 - 2 / (span + 1)) ** np.arange(50)
    return float((weights * x[::-1][:50]).sum() / weights.sum())


def rsi(c: np.ndarray, w: int) -> float:
    r = returns(c, 50)
    up, down = ema(np.maximum(r, 0), 2 * w - 1), ema(np.maximum(-r, 0), 2 * w - 1)
    return share(up, up + down, 0.5)


def cmo(c: np.ndarray, w: int) -> float:
    r = returns(c, w)
    return share(r.sum(), np.abs(r).sum(), 0)


def mfi(h: np.ndarray, l: np.ndarray, c: np.ndarray, v: np.ndarray, w: int) -> float:  # noqa: E741
    typical = (h + l + c) / 3
    inflow = sum(typical[-i] * v[-i] for i in range(1, w + 1) if typical[-i] > typical[-i - 1])
    outflow = sum(typical[-i] * v[-i] for i in range(1, w + 1) if typical[-i] < typical[-i - 1])
    return share(inflow, inflow + outflow, 0.5)


def directional(h: np.ndarray, l: np.ndarray, c: np.ndarray, w: int) -> tuple[float, float]:  # noqa: E741
    plus = minus = 0.0
    for i in range(1, w + 1):
        up, down = h[-i] - h[-i - 1], l[-i - 1] - l[-i]
        plus += up if up > max(down, 0) else 0
        minus += down if down > max(up, 0) else 0
    moved = true_ranges(h, l, c, w).sum()
    return share(plus, moved, 0), share(minus, moved, 0)


def adx(h: np.ndarray, l: np.ndarray, c: np.ndarray, w: int) -> float:  # noqa: E741
    values = []
    for back in range(w):
        stop = len(c) - back
        plus, minus = directional(h[:stop], l[:stop], c[:stop], w)
        values.append(share(abs(plus - minus), plus + minus, 0))
    return float(np.mean(values))


def obv_change(c: np.ndarray, v: np.ndarray, w: int) -> float:
    return share((np.sign(np.diff(c[-w - 1 :])) * v[-w:]).sum(), v[-w:].sum(), 0)


def vwap_distance(h: np.ndarray, l: np.ndarray, c: np.ndarray, v: np.ndarray, w: int) -> float:  # noqa: E741
    if v[-w:].sum() == 0:
        return 0.0
    return float(np.log(c[-1] / (((h + l + c) / 3 * v)[-w:].sum() / v[-w:].sum())))


def corwin_schultz(h: np.ndarray, l: np.ndarray, w: int) -> float:  # noqa: E741
    spreads = []
    for i in range(1, w + 1):
        beta = np.log(h[-i] / l[-i]) ** 2 + np.log(h[-i - 1] / l[-i - 1]) ** 2
        gamma = np.log(max(h[-i], h[-i - 1]) / min(l[-i], l[-i - 1])) ** 2
        root = 3 - 2 * 2**0.5
        alpha = ((2 * beta) ** 0.5 - beta**0.5) / root - (gamma / root) ** 0.5
        spreads.append(max(2 * (np.exp(alpha) - 1) / (1 + np.exp(alpha)), 0))
    return float(np.mean(spreads))


def kyle(c: np.ndarray, v: np.ndarray, w: int) -> float:
    signed = np.sign(returns(c, w)) * v[-w:]
    return share((returns(c, w) * signed).mean(), (signed**2).mean() ** 0.5, 0)


def signed_volume(h: np.ndarray, l: np.ndarray, c: np.ndarray, v: np.ndarray, w: int) -> float:  # noqa: E741
    location = [share(2 * c[-i] - h[-i] - l[-i], h[-i] - l[-i], 0) for i in range(w, 0, -1)]
    return share((location * v[-w:]).sum(), v[-w:].sum(), 0)


def amihud(c: np.ndarray, v: np.ndarray, w: int) -> float:
    impacts = [share(abs(r), size, 0) for r, size in zip(returns(c, w), v[-w:], strict=True)]
    return float(np.mean(impacts) * v[-w:].mean())


def autocorrelation(c: np.ndarray, w: int) -> float:
    r = returns(c, w)
    return share((r[1:] * r[:-1]).sum(), (r**2).sum(), 0)


ORACLES: dict[str, Oracle] = {
    "log_return": lambda o, h, l, c, v, w: np.log(c[-1] / c[-1 - w]),
    "parkinson": lambda o, h, l, c, v, w: (np.log(h / l)[-w:] ** 2).mean() ** 0.5 / (4 * np.log(2)) ** 0.5,
    "garman_klass": lambda o, h, l, c, v, w: (np.log(h / l) ** 2 / 2 - (2 * np.log(2) - 1) * np.log(c / o) ** 2)[-w:].mean() ** 0.5,
    "rogers_satchell": lambda o, h, l, c, v, w: (np.log(h / c) * np.log(h / o) + np.log(l / c) * np.log(l / o))[-w:].mean() ** 0.5,
    "close_volatility": lambda o, h, l, c, v, w: (returns(c, w) ** 2).mean() ** 0.5,
    "bipower": lambda o, h, l, c, v, w: (np.pi / 2 * np.abs(returns(c, w)[1:] * returns(c, w)[:-1]).mean()) ** 0.5,
    "semivariance_up": lambda o, h, l, c, v, w: (np.maximum(returns(c, w), 0) ** 2).mean() ** 0.5,
    "semivariance_down": lambda o, h, l, c, v, w: (np.minimum(returns(c, w), 0) ** 2).mean() ** 0.5,
    "skew": lambda o, h, l, c, v, w: share((returns(c, w) ** 3).mean(), (returns(c, w) ** 2).mean() ** 1.5, 0),
    "kurtosis": lambda o, h, l, c, v, w: share((returns(c, w) ** 4).mean(), (returns(c, w) ** 2).mean() ** 2, 3) - 3,
    "atr": lambda o, h, l, c, v, w: true_ranges(h, l, c, w).mean() / c[-1],
    "sma_distance": lambda o, h, l, c, v, w: np.log(c[-1]) - np.log(c[-w:]).mean(),
    "ema_distance": lambda o, h, l, c, v, w: np.log(c[-1]) - ema(np.log(c), w),
    "slope": lambda o, h, l, c, v, w: np.polyfit(np.arange(w), np.log(c[-w:]), 1)[0],
    "z_score": lambda o, h, l, c, v, w: share(np.log(c[-1]) - np.log(c[-w:]).mean(), np.ptp(c[-w:]) and np.log(c[-w:]).std(), 0),
    "rsi": lambda o, h, l, c, v, w: rsi(c, w),
    "cmo": lambda o, h, l, c, v, w: cmo(c, w),
    "mfi": lambda o, h, l, c, v, w: mfi(h, l, c, v, w),
    "adx": lambda o, h, l, c, v, w: adx(h, l, c, w),
    "plus_di": lambda o, h, l, c, v, w: directional(h, l, c, w)[0],
    "minus_di": lambda o, h, l, c, v, w: directional(h, l, c, w)[1],
    "percent_b": lambda o, h, l, c, v, w: 0.5 + share(c[-1] - c[-w:].mean(), 4 * c[-w:].std(), 0),
    "band_width": lambda o, h, l, c, v, w: 4 * c[-w:].std() / c[-w:].mean(),
    "donchian": lambda o, h, l, c, v, w: np.log(h[-w:].max() / l[-w:].min()),
    "aroon": lambda o, h, l, c, v, w: (np.argmin(l[-w - 1 :][::-1]) - np.argmax(h[-w - 1 :][::-1])) / w,
    "williams": lambda o, h, l, c, v, w: share(h[-w:].max() - c[-1], h[-w:].max() - l[-w:].min(), 0.5),
    "volume_z": lambda o, h, l, c, v, w: share(v[-1] - v[-w:].mean(), v[-w:].std(), 0),
    "volume_ratio": lambda o, h, l, c, v, w: np.log(share(v[-1] + 0.01 * v[-w:].mean(), 1.01 * v[-w:].mean(), 1)),
    "volume_newer_half": lambda o, h, l, c, v, w: share(v[-(w // 2) :].sum(), v[-w:].sum(), w // 2 / w),
    "obv_change": lambda o, h, l, c, v, w: obv_change(c, v, w),
    "vwap_distance": lambda o, h, l, c, v, w: vwap_distance(h, l, c, v, w),
    "roll": lambda o, h, l, c, v, w: 2 * max(-(returns(c, w)[1:] * returns(c, w)[:-1]).mean(), 0) ** 0.5,
    "amihud": lambda o, h, l, c, v, w: amihud(c, v, w),
    "corwin_schultz": lambda o, h, l, c, v, w: corwin_schultz(h, l, w),
    "kyle": lambda o, h, l, c, v, w: kyle(c, v, w),
    "signed_volume": lambda o, h, l, c, v, w: signed_volume(h, l, c, v, w),
    "autocorrelation": lambda o, h, l, c, v, w: autocorrelation(c, w),
}


@pytest.mark.parametrize("stem", ORACLES)
def test_equal_to_a_plain_loop(stem: str) -> None:
    names = [name for name in BAR_COLUMNS if name.rpartition("_")[0] == stem]
    assert names
    for name in names:
        window = int(name.rpartition("_")[2])
        for at in (50, 51, 77, 123, 160, 199):
            upto = [BARS[key][: at + 1] for key in ("open", "high", "low", "close", "volume")]
            expected = ORACLES[stem](*upto, window)
            assert column(name)[at] == pytest.approx(expected, rel=1e-6, abs=1e-12), (name, at)


def test_the_rest_by_hand() -> None:
    hand = {
        "open": np.array([100.0, 101.0, 104.0]),
        "high": np.array([102.0, 105.0, 104.0]),
        "low": np.array([99.0, 100.0, 104.0]),
        "close": np.array([101.0, 103.0, 104.0]),
        "volume": np.array([7.0, 0.0, 9.0]),
    }
    features = bar_features(hand)
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
    flat = {"body": 0, "range": 0, "gap": np.log(104 / 103), "true_range": np.log1p(1 / 104), "close_location": 0, "body_share": 0, "direction": 0}
    for name, value in flat.items():
        assert column(name, features)[2] == pytest.approx(value, abs=1e-14), name


@pytest.mark.parametrize("fast, slow", [(6, 13), (12, 26), (24, 50)])
def test_macd_and_ppo(fast: int, slow: int) -> None:
    for at in (60, 150):
        h, l, c = (BARS[key][: at + 1] for key in ("high", "low", "close"))  # noqa: E741
        between = ema(c, fast) - ema(c, slow)
        assert column(f"macd_{fast}_{slow}")[at] == pytest.approx(between / true_ranges(h, l, c, 50).mean(), rel=1e-7)
        assert column(f"ppo_{fast}_{slow}")[at] == pytest.approx(ema(c, fast) / ema(c, slow) - 1, rel=1e-7, abs=1e-14)


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
