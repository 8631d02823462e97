"""Sums over the last bars, one lag after the other.

Each value is summed in the same order wherever its window lies: no running total drifts, and a prefix or suffix of the
series gives the same bits. Results are as long as their input; the first `window - 1` of them are NaN.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

Series = np.ndarray  # float64 [bars]
SHORT = 256  # bars up to which all lags are taken in one call, for the calls would take longer than the sums; beyond, a lag at a time


def lags(x: Series, window: int) -> np.ndarray:
    """x 0, 1, … window - 1 bars ago, at each bar that has them all: a view [window, bars - window + 1]."""
    (stride,) = x.strides
    return np.ndarray((window, len(x) - window + 1), x.dtype, x, (window - 1) * stride, (-stride, stride))


def summed(window: int, term: Callable[..., np.ndarray], *series: Series, weights: np.ndarray | None = None) -> Series:
    """Σ term(lag's weight where there are any, values of each series so long ago) over the lags of a window, in their order.

    Args:
        window: how many lags.
        term: from one lag, or from all of them [window, bars - window + 1], to what is summed.
        series: what the term is of.
        weights: float64 [window].
    """
    ago = [lags(x, window) for x in series]  # [window, bars - window + 1] each
    factors = [] if weights is None else [weights[:, None]]
    if len(series[0]) <= SHORT:
        return aligned(np.add.accumulate(term(*factors, *ago), axis=0)[-1] + 0.0, window)  # as from 0.0: a sum is never -0.0
    sums = np.zeros(len(series[0]) - window + 1)
    for values in zip(*factors, *ago, strict=True):
        sums += term(*values)
    return aligned(sums, window)


def aligned(values: np.ndarray, window: int) -> Series:
    """Results at the bars that have a whole window behind them, with NaN at those that have not."""
    result = np.empty(window - 1 + len(values))
    result[: window - 1] = np.nan
    result[window - 1 :] = values
    return result


def lagged(x: Series, lag: int) -> Series:
    """x `lag` bars ago."""
    return aligned(x[: len(x) - lag], lag + 1)


def total(x: Series, window: int) -> Series:
    """Sum over the last `window` bars."""
    return summed(window, lambda ago: ago, x)


def mean(x: Series, window: int) -> Series:
    """Mean over the last `window` bars."""
    return total(x, window) / window


def weighted(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · x[lag] over the last len(weights) bars."""
    return summed(len(weights), np.multiply, x, weights=weights)


def weighted_change(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · (x[lag] - x[0]) over the last len(weights) bars; exactly 0 while x does not move."""
    now = x[len(weights) - 1 :]
    return summed(len(weights), lambda weight, ago: weight * (ago - now), x, weights=weights)


def mean_change(x: Series, window: int) -> Series:
    """Mean over the last `window` bars, less x now; exactly 0 while x does not move."""
    return weighted_change(x, np.ones(window)) / window


def deviation(x: Series, window: int) -> Series:
    """Standard deviation over the last `window` bars, about their mean; exactly 0 while x does not move."""
    now = x[window - 1 :]
    center = mean_change(x, window)[window - 1 :]
    return np.sqrt(summed(window, lambda ago: (ago - now - center) ** 2, x) / window)


def highest(x: Series, window: int) -> Series:
    """Maximum over the last `window` bars."""
    return aligned(np.maximum.reduce(lags(x, window), axis=0), window)


def lowest(x: Series, window: int) -> Series:
    """Minimum over the last `window` bars."""
    return -highest(-x, window)


def bars_since_highest(x: Series, window: int) -> Series:
    """How many bars ago the maximum over the last `window` bars was, the newest of equal ones."""
    return aligned(lags(x, window).argmax(axis=0).astype(np.float64), window)


@cache
def ema_weights(span: float, terms: int) -> np.ndarray:
    """Weights of an exponential mean, newest first, cut off after `terms` bars and summing to one; decay 1 - 2/(span + 1)."""
    weights = (1 - 2 / (span + 1)) ** np.arange(terms)
    return weights / weights.sum()


def ratio(numerator: Series, denominator: Series, neutral: float) -> Series:
    """numerator / denominator, and `neutral` where the denominator is zero: nothing moved, or nothing was traded."""
    zero = denominator == 0
    return np.where(zero, neutral, numerator / np.where(zero, 1.0, denominator))
