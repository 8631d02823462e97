"""Where the price stands against its own past: means, oscillators, bands and channels."""

import numpy as np

from tftq.data.features.price import Bars
from tftq.data.features.rolling import (
    Series,
    bars_since_highest,
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

TIE = 1e-9  # of the price: moves that differ by less are equal but for rounding, which no tick of 0.01 escapes
TERMS = 50  # an exponential mean ends after so many bars, so that no feature remembers more


def distance(bars: Bars, window: int) -> tuple[Series, ...]:
    """Log price against its simple and exponential mean, least-squares slope a bar, and z-score (0 while the price stands still)."""
    ago = np.arange(window)
    centred = (window - 1) / 2 - ago
    simple = -mean_change(bars.log_close, window)
    return (
        simple,
        -weighted_change(bars.log_close, ema_weights(window, TERMS)),
        weighted_change(bars.log_close, centred / (centred**2).sum()),
        ratio(simple, deviation(bars.log_close, window), 0.0),
    )


def oscillators(bars: Bars, window: int) -> tuple[Series, ...]:
    """RSI with Wilder's weights, CMO, MFI, ADX, +DI and -DI, all as fractions.

    While nothing moves: RSI and MFI 0.5, the others 0.
    """
    rise, fall = np.maximum(bars.returns, 0), np.maximum(-bars.returns, 0)
    wilder = ema_weights(2 * window - 1, TERMS)  # decay 1 - 1/window
    up, down = weighted(rise, wilder), weighted(fall, wilder)
    rises, falls = total(rise, window), total(fall, window)

    flow = bars.typical * bars.volume
    change = np.r_[0.0, np.diff(bars.typical)]
    tie = TIE * bars.close
    inflow, outflow = total(flow * (change > tie), window), total(flow * (change < -tie), window)

    higher, lower = np.r_[0.0, np.diff(bars.high)], np.r_[0.0, -np.diff(bars.low)]
    moved = total(bars.true_range, window)
    plus = ratio(total(np.where(higher > np.maximum(lower, 0) + tie, higher, 0.0), window), moved, 0.0)
    minus = ratio(total(np.where(lower > np.maximum(higher, 0) + tie, lower, 0.0), window), moved, 0.0)
    adx = mean(ratio(np.abs(plus - minus), plus + minus, 0.0), window)
    return (
        ratio(up, up + down, 0.5),
        ratio(rises - falls, rises + falls, 0.0),
        ratio(inflow, inflow + outflow, 0.5),
        adx,
        plus,
        minus,
    )


def macd(bars: Bars, spans: tuple[int, int]) -> tuple[Series, ...]:
    """A fast exponential mean less a slow one: in mean true ranges (0 without any), and over the slow one."""
    fast, slow = (ema_weights(span, TERMS) for span in spans)
    between = weighted_change(bars.close, fast - slow)
    return (
        ratio(between, mean(bars.true_range, TERMS), 0.0),
        between / (bars.close + weighted_change(bars.close, slow)),
    )


def bollinger(bars: Bars, window: int) -> tuple[Series, ...]:
    """%B, which is 0 at the lower and 1 at the upper band of two standard deviations (0.5 while the price stands still), and width."""
    below = mean_change(bars.close, window)
    spread = deviation(bars.close, window)
    return 0.5 - ratio(below, 4 * spread, 0.0), 4 * spread / (bars.close + below)


def channels(bars: Bars, window: int) -> tuple[Series, ...]:
    """Donchian width, Aroon oscillator over window + 1 bars, Williams %R as a fraction (0.5 in a channel without width)."""
    top, bottom = highest(bars.high, window), lowest(bars.low, window)
    return (
        np.log(top / bottom),
        (bars_since_highest(-bars.low, window + 1) - bars_since_highest(bars.high, window + 1)) / window,
        ratio(top - bars.close, top - bottom, 0.5),
    )
