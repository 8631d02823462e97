"""Sums over the last bars, for several windows at once.

Terms are summed lag by lag, the newest first, so that the sums of short windows are partial sums of the long ones. The order is the
same wherever a window lies and however many bars are computed at a time: no running total drifts, and a prefix or suffix of the series
gives the same bits. Results are as long as their input; where the longest window of a call is not whole, they are NaN.
"""

from functools import cache

import numpy as np

Series = np.ndarray  # float64 [bars]
Table = np.ndarray  # float64 [windows, bars]
Windows = tuple[int, ...]  # in bars
FEW = 64  # bars up to which one call per lag would take longer than the sums


def lags(x: Series, count: int) -> np.ndarray:
    """Return x 0, 1, … count - 1 bars ago, at each bar that has them all: a view [count, bars - count + 1]."""
    (stride,) = x.strides
    return np.ndarray((count, len(x) - count + 1), x.dtype, x, (count - 1) * stride, (-stride, stride))


def changes(x: Series, count: int) -> np.ndarray:
    """Subtract x now from its `lags`."""
    return lags(x, count) - x[count - 1 :]


def sums(terms: np.ndarray, windows: Windows) -> Table:
    """Sum terms over windows.

    Args:
        terms: by lag, [lags, bars], or for each window its own [windows, lags, bars]; as many lags as the longest window.
        windows: the windows.
    """
    each = terms.ndim == 3
    count, bars = terms.shape[-2:]
    found = np.empty((len(windows), bars))
    if bars <= FEW:
        met = np.add.accumulate(terms, axis=-2)
        last = np.array(windows) - 1
        found[:] = met[np.arange(len(windows)), last] if each else met[last]
    else:
        running = np.zeros(found.shape if each else bars)
        for lag in range(count):
            running += terms[..., lag, :]
            for place, window in enumerate(windows):
                if window == lag + 1:
                    found[place] = running[place] if each else running
    return aligned(found + 0.0, count)  # starts at 0.0: a sum is never -0.0


def aligned(values: np.ndarray, count: int) -> np.ndarray:
    """Place results [..., bars] at the bars that have `count` lags, with NaN at the others."""
    result = np.empty((*values.shape[:-1], count - 1 + values.shape[-1]))
    result[..., : count - 1] = np.nan
    result[..., count - 1 :] = values
    return result


def column(windows: Windows) -> np.ndarray:
    """Shape the windows as a column, to divide a table by [windows, 1]."""
    return np.array(windows)[:, None]


def total(x: Series, windows: Windows) -> Table:
    """Compute sums over the last bars."""
    return sums(lags(x, max(windows)), windows)


def mean(x: Series, windows: Windows) -> Table:
    """Compute means over the last bars."""
    return total(x, windows) / column(windows)


def weighted(x: Series, weights: np.ndarray) -> Table:
    """Compute Σ weights[window, lag] · x[lag] over the last bars.

    Args:
        x: the series.
        weights: float64 [windows, lags].
    """
    count = weights.shape[1]
    return sums(weights[:, :, None] * lags(x, count), (count,) * len(weights))


def weighted_change(x: Series, weights: np.ndarray) -> Table:
    """Compute Σ weights[window, lag] · (x[lag] - x[0]) over the last bars; exactly 0 while x does not move.

    Args:
        x: the series.
        weights: float64 [windows, lags].
    """
    count = weights.shape[1]
    return sums(weights[:, :, None] * changes(x, count), (count,) * len(weights))


def mean_change(x: Series, windows: Windows) -> Table:
    """Compute means over the last bars, less x now; exactly 0 while x does not move."""
    return sums(changes(x, max(windows)), windows) / column(windows)


def deviation(x: Series, windows: Windows) -> Table:
    """Compute standard deviations over the last bars, about their mean; exactly 0 while x does not move."""
    count = max(windows)
    center = mean_change(x, windows)[:, None, count - 1 :]  # [windows, 1, bars]
    return np.sqrt(sums((changes(x, count) - center) ** 2, windows) / column(windows))


def highest(x: Series, windows: Windows) -> Table:
    """Compute maxima over the last bars."""
    count = max(windows)
    return aligned(np.maximum.accumulate(lags(x, count))[np.array(windows) - 1], count)


def lowest(x: Series, windows: Windows) -> Table:
    """Compute minima over the last bars."""
    return -highest(-x, windows)


def bars_since_highest(x: Series, windows: Windows) -> Table:
    """Count the bars since the maximum over the last bars, the newest of equal ones."""
    count = max(windows)
    ago = lags(x, count)
    return aligned(np.stack([ago[:window].argmax(axis=0) for window in windows]), count)


@cache
def ema_weights(spans: tuple[float, ...], terms: int) -> np.ndarray:
    """Compute weights of exponential means, newest first, `terms` long, summing to one; decay 1 - 2/(span + 1) [spans, terms]."""
    weights = (1 - 2 / (np.array(spans)[:, None] + 1)) ** np.arange(terms)
    return weights / weights.sum(axis=1, keepdims=True)


def ratio(numerator: np.ndarray, denominator: np.ndarray, neutral: float | np.ndarray) -> np.ndarray:
    """Divide, with `neutral` where the denominator is zero: nothing moved, or nothing was traded."""
    zero = denominator == 0
    return np.where(zero, neutral, numerator / np.where(zero, 1.0, denominator))
