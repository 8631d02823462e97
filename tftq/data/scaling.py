"""Scalings: how raw columns and targets become numbers of size one; fitted on the training part, applied inside the graph."""

from dataclasses import dataclass

import numpy as np

from tftq.data.columns import Column

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


@dataclass(frozen=True)
class Scaling:
    """The scalings of the history columns, whose last ones are the future columns too, and of the static ones."""

    history: ColumnScaling
    static: ColumnScaling | None


@dataclass(frozen=True)
class TargetScaling:
    """The target at each step of the horizon: `center` and `scale`, float32 [horizon], in the target's unit."""

    center: np.ndarray
    scale: np.ndarray


def fit_columns(columns: tuple[Column, ...], values: np.ndarray) -> tuple[ColumnScaling, list[str]]:
    """Fit the scaling of columns to the rows of the training part.

    Args:
        columns: the columns in order.
        values: float32 [rows, columns], raw.

    Returns:
        The scaling, and a note that names the constant columns where there are any.
    """
    fits = [_fit(column, values[:, index]) for index, column in enumerate(columns)]
    center, scale, tailed, low, high = (np.array(part) for part in zip(*fits, strict=True))
    constant = [column.name for column, a, b in zip(columns, low, high, strict=True) if a == b]
    notes = [f"constant over the training part: {', '.join(constant)}"] if constant else []
    return ColumnScaling(center, scale, tailed, low, high), notes


def _fit(column: Column, raw: np.ndarray) -> tuple[np.float32, np.float32, bool, np.float32, np.float32]:
    if column.categories:
        return np.float32(0), np.float32(1), False, np.float32(0), np.float32(column.categories - 1)
    exact = raw.astype(np.float64)
    constant = exact.min() == exact.max()
    center = np.float32(exact[0] if constant else exact.mean())
    scale = np.float32(1 if constant else exact.std())
    z = (raw - center) / scale  # in float32, as the graph does it
    tailed = bool(np.abs(z).max() > TAIL)
    result = np.arcsinh(z) if tailed else z
    return center, scale, tailed, result.min(), result.max()
