"""Sums over the last bars, one lag after the other.

Each value is summed in the same order wherever its window lies: no running total drifts, and a prefix or suffix of the
series gives the same bits. Results are as long as their input; the first `window - 1` of them are NaN.
"""

from collections.abc import Iterator

import numpy as np

Series = np.ndarray  # float64 [bars]


def lags(x: Series, window: int) -> Iterator[np.ndarray]:
    """x 0, 1, … window - 1 bars ago, at each bar that has them all: views [bars - window + 1]."""
    for lag in range(window):
        yield x[window - 1 - lag : len(x) - lag]


def aligned(values: np.ndarray, window: int) -> Series:
    """Results at the bars that have a whole window behind them, with NaN at those that have not."""
    return np.r_[np.full(window - 1, np.nan), values]


def lagged(x: Series, lag: int) -> Series:
    """x `lag` bars ago."""
    return aligned(x[: len(x) - lag], lag + 1)


def total(x: Series, window: int) -> Series:
    """Sum over the last `window` bars."""
    return weighted(x, np.ones(window))


def mean(x: Series, window: int) -> Series:
    """Mean over the last `window` bars."""
    return total(x, window) / window


def weighted(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · x[lag] over the last len(weights) bars."""
    sums = np.zeros(len(x) - len(weights) + 1)
    for weight, ago in zip(weights, lags(x, len(weights)), strict=True):
        sums += weight * ago
    return aligned(sums, len(weights))


def weighted_change(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · (x[lag] - x[0]) over the last len(weights) bars; exactly 0 while x does not move."""
    now = x[len(weights) - 1 :]
    sums = np.zeros(len(now))
    for weight, ago in zip(weights, lags(x, len(weights)), strict=True):
        sums += weight * (ago - now)
    return aligned(sums, len(weights))


def mean_change(x: Series, window: int) -> Series:
    """Mean over the last `window` bars, less x now; exactly 0 while x does not move."""
    return weighted_change(x, np.ones(window)) / window


def deviation(x: Series, window: int) -> Series:
    """Standard deviation over the last `window` bars, about their mean; exactly 0 while x does not move."""
    now = x[window - 1 :]
    center = mean_change(x, window)[window - 1 :]
    squares = np.zeros(len(now))
    for ago in lags(x, window):
        squares += (ago - now - center) ** 2
    return aligned(np.sqrt(squares / window), window)


def highest(x: Series, window: int) -> Series:
    """Maximum over the last `window` bars."""
    top = x[window - 1 :].copy()
    for ago in lags(x, window):
        np.maximum(top, ago, out=top)
    return aligned(top, window)


def lowest(x: Series, window: int) -> Series:
    """Minimum over the last `window` bars."""
    return -highest(-x, window)


def bars_since_highest(x: Series, window: int) -> Series:
    """How many bars ago the maximum over the last `window` bars was, the newest of equal ones."""
    top = x[window - 1 :].copy()
    age = np.zeros(len(top))
    for lag, ago in enumerate(lags(x, window)):
        newer = ago > top
        age[newer] = lag
        top[newer] = ago[newer]
    return aligned(age, window)


def ema_weights(span: float, terms: int) -> np.ndarray:
    """Weights of an exponential mean, newest first, cut off after `terms` bars and summing to one; decay 1 - 2/(span + 1)."""
    weights = (1 - 2 / (span + 1)) ** np.arange(terms)
    return weights / weights.sum()


def ratio(numerator: Series, denominator: Series, neutral: float) -> Series:
    """numerator / denominator, and `neutral` where the denominator is zero: nothing moved, or nothing was traded."""
    zero = denominator == 0
    return np.where(zero, neutral, numerator / np.where(zero, 1.0, denominator))
