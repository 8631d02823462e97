"""The table of features, from which names, order and count derive."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tftq.data.features import price, trend, volume
from tftq.data.features.calendar import PHASES, circle
from tftq.data.features.price import Bars
from tftq.data.features.rolling import Series
from tftq.data.files import wall_clock

MEMORY = 51  # bars that a feature depends on, its own included; only `bars_in_segment` reaches further back


class Group(NamedTuple):
    """Features made by one function, for each of several windows.

    Args:
        names: what the function returns, in order; a window is appended to each.
        make: from bars, and the windows if any, to one array per name: float64 [windows, bars], or [bars] without windows.
        windows: the windows, in bars; empty where the function takes none.
    """

    names: tuple[str, ...]
    make: Callable[..., tuple[np.ndarray, ...]]
    windows: tuple[Any, ...] = ()


def flags(bars: Bars) -> tuple[Series, ...]:
    """Compute whether nothing was traded, and the logarithm of the segment's number of bars so far."""
    count = np.maximum(np.arange(len(bars.close)) - bars.pad, 0) + bars.age
    return (bars.volume == 0).astype(np.float64), np.log1p(count)


SIX = (5, 10, 15, 20, 30, 50)
FIVE = (5, 10, 20, 30, 50)
FOUR = (10, 20, 30, 50)

BAR_GROUPS = (
    Group(("log_return",), price.log_return, (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)),
    Group(
        ("body", "upper_shadow", "lower_shadow", "range", "gap", "true_range", "close_location", "body_share", "direction"),
        price.candle,
    ),
    Group(("parkinson", "garman_klass", "rogers_satchell", "close_volatility"), price.volatility, SIX),
    Group(("bipower", "semivariance_up", "semivariance_down", "skew", "kurtosis"), price.moments, (10, 15, 20, 30, 50)),
    Group(("atr",), price.average_true_range, SIX),
    Group(("sma_distance", "ema_distance", "slope", "z_score"), trend.distance, SIX),
    Group(("rsi", "cmo", "mfi", "adx", "plus_di", "minus_di"), trend.oscillators, (5, 10, 14, 25)),  # ADX takes two windows
    Group(("macd", "ppo"), trend.macd, ((6, 13), (12, 26), (24, 50))),
    Group(("percent_b", "band_width"), trend.bollinger, (8, 12, 18, 26, 40)),
    Group(("donchian", "aroon", "williams"), trend.channels, FIVE),
    Group(("volume_z", "volume_ratio", "volume_newer_half", "obv_change", "vwap_distance"), volume.volume, SIX),
    Group(("roll", "amihud", "corwin_schultz", "kyle", "signed_volume", "autocorrelation"), volume.liquidity, FOUR),
    Group(("zero_volume", "bars_in_segment"), flags),
)

# Cycles of the clock with their harmonic, each as sine and cosine, and the share of the month that has passed.
CLOCK = (("minute", 1), ("hour", 1), ("hour", 2), ("week", 1), ("day_of_year", 1))


def _names(group: Group) -> list[str]:
    if not group.windows:
        return list(group.names)
    suffixes = ["_".join(map(str, window)) if isinstance(window, tuple) else str(window) for window in group.windows]
    return [f"{name}_{suffix}" for suffix in suffixes for name in group.names]


BAR_COLUMNS = tuple(name for group in BAR_GROUPS for name in _names(group))
CLOCK_COLUMNS = (*(f"{cycle}_{part}_{harmonic}" for cycle, harmonic in CLOCK for part in ("sin", "cos")), "day_of_month")
WIDTH = len(BAR_COLUMNS) + len(CLOCK_COLUMNS)


def bar_features(columns: dict[str, Series], age: int = 0) -> np.ndarray:
    """Compute the observed features of one segment of bars, or of its later part.

    Causal: bar t depends on the `MEMORY` bars up to t alone, except for `bars_in_segment`. Finite from the first bar on.

    Args:
        columns: open, high, low, close and volume, float64 [bars].
        age: how many bars of the segment come before them; if any, the first `MEMORY - 1` results are invalid.

    Returns:
        float64 [len(BAR_COLUMNS), bars].
    """
    bars = Bars.padded(columns, age)
    made = []
    for group in BAR_GROUPS:
        found = group.make(bars, group.windows) if group.windows else group.make(bars)
        assert len(found) == len(group.names)
        made.append(np.stack(found, axis=-2).reshape(-1, len(bars.close)))  # [windows x names, bars]
    return np.concatenate(made)[:, bars.pad :]


def clock_features(times: np.ndarray, time_zone: str | None = None) -> np.ndarray:
    """Compute the known features, those of the clock, at any time, past or future.

    Args:
        times: int64 nanoseconds UTC [rows].
        time_zone: of the clock; None is UTC.

    Returns:
        float64 [rows, len(CLOCK_COLUMNS)], in the order of `CLOCK_COLUMNS`.
    """
    wall = wall_clock(times, time_zone)
    waves = [wave for cycle, harmonic in CLOCK for wave in circle(wall, cycle, harmonic)]
    return np.stack([*waves, PHASES["day_of_month"](wall)], axis=1)


def feature_rows(columns: dict[str, Series], times: np.ndarray, wanted: int, *, age: int, time_zone: str | None) -> np.ndarray:
    """Compute all features of the last bars, bit-equal to those of the whole segment if `MEMORY - 1` of its bars come before them.

    Args:
        columns: open, high, low, close and volume, float64 [bars].
        times: int64 nanoseconds UTC [bars].
        wanted: number of bars to compute features of.
        age: how many bars of the segment come before the first of these.
        time_zone: see `clock_features`.

    Returns:
        float32 [wanted, WIDTH]: the columns of `BAR_COLUMNS`, then those of `CLOCK_COLUMNS`.
    """
    rows = np.empty((wanted, WIDTH), np.float32)
    rows[:, : len(BAR_COLUMNS)] = bar_features(columns, age)[:, -wanted:].T
    rows[:, len(BAR_COLUMNS) :] = clock_features(times[-wanted:], time_zone)
    return rows
