"""Sums over the last bars, one lag after the other.

Each value is summed in the same order wherever its window lies: no running total drifts, and a prefix or suffix of the
series gives the same bits. Results are as long as their input; the first `window - 1` of them are NaN.
"""

from collections.abc import Callable

import numpy as np

Series = np.ndarray  # float64 [bars]


def lagged(x: Series, lag: int) -> Series:
    """x `lag` bars ago."""
    result = np.full_like(x, np.nan)
    result[lag:] = x[: len(x) - lag]
    return result


def _fold(x: Series, window: int, combine: Callable[[np.ndarray, np.ndarray, int], None]) -> Series:
    result = np.full_like(x, np.nan)
    total = x[window - 1 :].copy()
    for lag in range(1, window):
        combine(total, x[window - 1 - lag : len(x) - lag], lag)
    result[window - 1 :] = total
    return result


def total(x: Series, window: int) -> Series:
    """Sum over the last `window` bars."""
    return _fold(x, window, lambda so_far, x_ago, lag: np.add(so_far, x_ago, out=so_far))


def mean(x: Series, window: int) -> Series:
    """Mean over the last `window` bars."""
    return total(x, window) / window


def highest(x: Series, window: int) -> Series:
    """Maximum over the last `window` bars."""
    return _fold(x, window, lambda so_far, x_ago, lag: np.maximum(so_far, x_ago, out=so_far))


def lowest(x: Series, window: int) -> Series:
    """Minimum over the last `window` bars."""
    return -highest(-x, window)


def bars_since_highest(x: Series, window: int) -> Series:
    """How many bars ago the maximum over the last `window` bars was, the newest of equal ones."""
    top = np.full_like(x, np.nan)
    top[window - 1 :] = x[window - 1 :]
    age = np.where(np.isnan(top), np.nan, 0.0)
    for lag in range(1, window):
        ago = lagged(x, lag)
        newer = ago > top
        age[newer] = lag
        top[newer] = ago[newer]
    return age


def weighted_change(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · (x[lag] - x[0]) over the last len(weights) bars; exactly 0 while x does not move."""
    return _over_lags(x, len(weights), lambda change, lag: weights[lag] * change)


def weighted(x: Series, weights: np.ndarray) -> Series:
    """Σ weights[lag] · x[lag] over the last len(weights) bars."""
    result = np.full_like(x, np.nan)
    sums = weights[0] * x[len(weights) - 1 :]
    for lag in range(1, len(weights)):
        sums += weights[lag] * x[len(weights) - 1 - lag : len(x) - lag]
    result[len(weights) - 1 :] = sums
    return result


def mean_change(x: Series, window: int) -> Series:
    """Mean over the last `window` bars, less x now; exactly 0 while x does not move."""
    return _over_lags(x, window, lambda change, lag: change) / window


def deviation(x: Series, window: int) -> Series:
    """Standard deviation over the last `window` bars, about their mean; exactly 0 while x does not move."""
    center = mean_change(x, window)[window - 1 :]
    square = _over_lags(x, window, lambda change, lag: (change - center) ** 2, from_lag=0)
    return np.sqrt(square / window)


def ema_weights(span: float, terms: int) -> np.ndarray:
    """Weights of an exponential mean, newest first, cut off after `terms` bars and summing to one; decay 1 - 2/(span + 1)."""
    weights = (1 - 2 / (span + 1)) ** np.arange(terms)
    return weights / weights.sum()


def ratio(numerator: Series, denominator: Series, neutral: float) -> Series:
    """numerator / denominator, and `neutral` where the denominator is zero: nothing moved, or nothing was traded."""
    zero = denominator == 0
    return np.where(zero, neutral, numerator / np.where(zero, 1.0, denominator))


def _over_lags(x: Series, window: int, term: Callable[[np.ndarray, int], np.ndarray], from_lag: int = 1) -> Series:
    now = x[window - 1 :]
    result = np.full_like(x, np.nan)
    sums = np.zeros(len(now))
    for lag in range(from_lag, window):
        sums += term(x[window - 1 - lag : len(x) - lag] - now, lag)
    result[window - 1 :] = sums
    return result
