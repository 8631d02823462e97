"""Features that compare the price with its own past: means, oscillators, bands and channels."""

from functools import cache

import numpy as np

from tftq.data.features.price import Bars
from tftq.data.features.rolling import (
    Table,
    Windows,
    bars_since_highest,
    column,
    deviation,
    ema_weights,
    highest,
    lowest,
    mean,
    mean_change,
    ratio,
    total,
    weighted,
    weighted_change,
)

TIE = 1e-9  # of the price: moves that differ by less are equal except for rounding, which no tick of 0.01 escapes
TERMS = 50  # bars after which an exponential mean is cut off, so that no feature depends on more


def distance(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute log price less its simple and exponential mean, least-squares slope per bar, z-score (0 while the price stands still)."""
    simple = -mean_change(bars.log_close, windows)
    return (
        simple,
        -weighted_change(bars.log_close, ema_weights(windows, TERMS)),
        weighted_change(bars.log_close, slope_weights(windows)),
        ratio(simple, deviation(bars.log_close, windows), 0.0),
    )


@cache
def slope_weights(windows: Windows) -> np.ndarray:
    """Compute the weights of a least-squares slope, newest first [windows, lags]; zeros beyond a window."""
    weights = np.zeros((len(windows), max(windows)))
    for row, window in zip(weights, windows, strict=True):
        centred = (window - 1) / 2 - np.arange(window)
        row[:window] = centred / (centred**2).sum()
    return weights


def oscillators(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute RSI with Wilder's weights, CMO, MFI, ADX, +DI and -DI, all as fractions.

    While nothing moves: RSI and MFI 0.5, the others 0.
    """
    rise, fall = np.maximum(bars.returns, 0), np.maximum(-bars.returns, 0)
    wilder = ema_weights(tuple(2 * window - 1 for window in windows), TERMS)  # decay 1 - 1/window
    up, down = weighted(rise, wilder), weighted(fall, wilder)
    rises, falls = total(rise, windows), total(fall, windows)

    flow = bars.typical * bars.volume
    change = np.r_[0.0, np.diff(bars.typical)]
    tie = TIE * bars.close
    inflow, outflow = total(flow * (change > tie), windows), total(flow * (change < -tie), windows)

    higher, lower = np.r_[0.0, np.diff(bars.high)], np.r_[0.0, -np.diff(bars.low)]
    moved = total(bars.true_range, windows)
    plus = ratio(total(np.where(higher > np.maximum(lower, 0) + tie, higher, 0.0), windows), moved, 0.0)
    minus = ratio(total(np.where(lower > np.maximum(higher, 0) + tie, lower, 0.0), windows), moved, 0.0)
    directed = ratio(np.abs(plus - minus), plus + minus, 0.0)
    adx = np.stack([mean(of_window, (window,))[0] for of_window, window in zip(directed, windows, strict=True)])
    return (
        ratio(up, up + down, 0.5),
        ratio(rises - falls, rises + falls, 0.0),
        ratio(inflow, inflow + outflow, 0.5),
        adx,
        plus,
        minus,
    )


def macd(bars: Bars, spans: tuple[tuple[int, int], ...]) -> tuple[Table, ...]:
    """Compute a fast exponential mean less a slow one: in mean true ranges (0 without any), and over the slow one."""
    fast, slow = (ema_weights(each, TERMS) for each in zip(*spans, strict=True))
    between = weighted_change(bars.close, fast - slow)
    return (
        ratio(between, mean(bars.true_range, (TERMS,)), 0.0),
        between / (bars.close + weighted_change(bars.close, slow)),
    )


def bollinger(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute %B, which is 0 at the lower and 1 at the upper band of two standard deviations (0.5 while the price rests), and width."""
    below = mean_change(bars.close, windows)
    spread = deviation(bars.close, windows)
    return 0.5 - ratio(below, 4 * spread, 0.0), 4 * spread / (bars.close + below)


def channels(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute Donchian width, Aroon oscillator over window + 1 bars, Williams %R as a fraction (0.5 in a channel without width)."""
    top, bottom = highest(bars.high, windows), lowest(bars.low, windows)
    longer = tuple(window + 1 for window in windows)
    return (
        np.log(top / bottom),
        (bars_since_highest(-bars.low, longer) - bars_since_highest(bars.high, longer)) / column(windows),
        ratio(top - bars.close, top - bottom, 0.5),
    )
