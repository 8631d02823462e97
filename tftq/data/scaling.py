"""Scalings of raw columns and targets to numbers of size one; fitted on the training part, applied inside the graph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from tftq.spec.inputs import Column

TAIL = 6.0  # standard deviations beyond which a column's tails are compressed


@dataclass(frozen=True)
class ColumnScaling:
    """z = (x - center) / scale, then asinh where `tailed`, then clipped to [low, high].

    Args:
        center: float32 [columns].
        scale: float32 [columns], above zero.
        tailed: bool [columns]; the training part reaches beyond `TAIL` in |z|.
        low: float32 [columns]; the least result over the training part.
        high: float32 [columns]; the greatest; equal to `low` where the column was constant.
    """

    center: np.ndarray
    scale: np.ndarray
    tailed: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def at(self, places: Sequence[int]) -> "ColumnScaling":
        """Select the scalings of the columns at some indices, in that order."""
        return ColumnScaling(*(getattr(self, field.name)[list(places)] for field in fields(self)))


@dataclass(frozen=True)
class Scaling:
    """The scalings of all columns of a data row, `history`, including those the history input lacks; and of the static ones."""

    history: ColumnScaling
    static: ColumnScaling | None


@dataclass(frozen=True)
class TargetScaling:
    """The target at each step of the horizon: `center` and `scale`, float32 [horizon], in the target's unit."""

    center: np.ndarray
    scale: np.ndarray


class Moments(NamedTuple):
    """Statistics of columns over all their rows: float64 [columns] each."""

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def moments(blocks: Iterable[np.ndarray]) -> Moments:
    """Compute least, greatest, mean and standard deviation of columns, in one pass over blocks of rows (Chan, Golub and LeVeque 1983).

    Args:
        blocks: float32 [any number of rows, columns] each; at least one.
    """
    count, low, high, mean, squares = 0, np.array(np.inf), np.array(-np.inf), np.array(0.0), np.array(0.0)
    for block in blocks:
        exact = block.T.astype(np.float64, order="C")  # [columns, rows]: sums along rows that lie side by side are the exact ones
        low, high = np.minimum(low, exact.min(axis=1)), np.maximum(high, exact.max(axis=1))
        here = exact.mean(axis=1)
        exact -= here[:, None]
        total = count + len(block)
        squares = squares + np.square(exact, out=exact).sum(axis=1) + (here - mean) ** 2 * (count * len(block) / total)
        mean = mean + (here - mean) * (len(block) / total)
        count = total
    return Moments(low, high, mean, np.sqrt(squares / count))


def fit_columns(columns: tuple[Column, ...], blocks: Iterable[np.ndarray]) -> tuple[ColumnScaling, list[str]]:
    """Fit the scaling of columns to the rows of the training part.

    Args:
        columns: the columns in order.
        blocks: the rows, raw, float32 [any number of rows, columns] each.

    Returns:
        The scaling, and a note that names the constant columns where there are any.
    """
    fits = [_fit(column, *figures) for column, *figures in zip(columns, *moments(blocks), strict=True)]
    center, scale, tailed, low, high = (np.array(part) for part in zip(*fits, strict=True))
    constant = [column.name for column, a, b in zip(columns, low, high, strict=True) if a == b]
    notes = [f"constant over the training part: {', '.join(constant)}"] if constant else []
    return ColumnScaling(center, scale, tailed, low, high), notes


def _fit(
    column: Column, low: float, high: float, mean: float, deviation: float
) -> tuple[np.float32, np.float32, bool, np.float32, np.float32]:
    if column.categories:
        return np.float32(0), np.float32(1), False, np.float32(0), np.float32(column.categories - 1)
    constant = low == high
    center = np.float32(low if constant else mean)
    scale = np.float32(1 if constant else deviation)
    ends = (np.array([low, high], np.float32) - center) / scale  # in float32, as the graph computes; monotone, so these are the ends
    tailed = bool(np.abs(ends).max() > TAIL)
    least, greatest = np.arcsinh(ends) if tailed else ends
    return center, scale, tailed, least, greatest
