"""Windows: lazy views into one array of rows; nothing is materialised beyond the batch at hand."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from tftq.data.scaling import Scaling, TargetScaling
from tftq.spec.inputs import Inputs

BLOCK = 1024  # rows or windows processed at a time where all of them are needed


class BatchArrays(NamedTuple):
    """A batch of windows in raw units, float32; categories are codes stored as floats.

    history [batch, lookback, history columns], future [batch, horizon, known columns],
    static [batch, static columns] or None, target [batch, horizon] in the target's unit.
    """

    history: np.ndarray
    future: np.ndarray
    static: np.ndarray | None
    target: np.ndarray

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """Return the arrays the model takes, in the order of `Inputs.shapes`."""
        return (self.history, self.future) if self.static is None else (self.history, self.future, self.static)


def blocks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Split an array along its first dimension into views of at most `size`."""
    return (array[start : start + size] for start in range(0, len(array), size))


def nothing_to_release() -> None:
    """Release nothing: the rows lie in memory of their own."""


def history_rows(rows: np.ndarray, which: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Gather the columns of the history input in some rows.

    Args:
        rows: [rows, columns of a row].
        which: int64, of any shape.
        inputs: the columns.

    Returns:
        [*which, history columns].
    """
    return rows[which[..., None], inputs.history_places] if inputs.left_out else rows[which]


class Target(Protocol):
    """The target of a window: the values to forecast, from the rows after its last history row."""

    @property
    def unit(self) -> str:
        """Return the unit of the target."""

    def values(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """Compute the target, float32 [batch, horizon], after the history rows `last`, int64 [batch]."""

    def naive(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """Compute a baseline's forecast of it, float32 [batch, horizon], from rows up to `last` alone."""


@dataclass(frozen=True)
class LogReturn:
    """Cumulative log return since the last history bar; the naive forecast is no change.

    Args:
        close: float64 [rows], the closing prices.
    """

    close: np.ndarray
    unit: str = "log return"

    def values(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """See `Target.values`."""
        ahead = self.close[_ahead(last, horizon)]  # [batch, horizon]
        return np.log(ahead / self.close[last, None]).astype(np.float32)

    def naive(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """See `Target.naive`."""
        return np.zeros((len(last), horizon), np.float32)


@dataclass(frozen=True)
class Level:
    """A column's own value; the naive forecast is the value whole seasons earlier.

    Args:
        column: float64 [rows], not finite where missing.
        slots: int64 [rows], increasing: the rows' places on the even grid of time.
        season: steps of the grid in one season.
        unit: the column's name.
    """

    column: np.ndarray
    slots: np.ndarray
    season: int
    unit: str

    def values(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """See `Target.values`."""
        return self.column[_ahead(last, horizon)].astype(np.float32)

    def naive(self, last: np.ndarray, horizon: int) -> np.ndarray:
        """See `Target.naive`."""
        value, found = self._season_ago(last, horizon)
        return np.where(found, value, self.column[last, None]).astype(np.float32)

    def without_season(self, last: np.ndarray, horizon: int) -> int:
        """Count the values of the naive forecast without a row a season ago, replaced by the last value."""
        return int((~self._season_ago(last, horizon)[1]).sum())

    def _season_ago(self, last: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        step = np.arange(1, horizon + 1)
        seasons = (step + self.season - 1) // self.season  # the fewest that reach back to the history
        wanted = self.slots[last, None] + step - seasons * self.season  # [batch, horizon]
        row = np.minimum(np.searchsorted(self.slots, wanted), len(self.slots) - 1)
        value = self.column[row]
        return value, (self.slots[row] == wanted) & np.isfinite(value)


class Windows:
    """The windows of one part of the data.

    Args:
        name: train, validation or test.
        inputs: the columns and the shape of a window.
        rows: float32 [rows, columns of a row], raw, contiguous; shared by all parts.
        times: int64 [rows], nanoseconds UTC; shared by all parts.
        starts: int64 [windows], the row of each window's first history bar.
        target: what to forecast.
        release: called after rows were read, see `Source`.
    """

    def __init__(
        self,
        name: str,
        inputs: Inputs,
        rows: np.ndarray,
        times: np.ndarray,
        starts: np.ndarray,
        target: Target,
        release: Callable[[], None] = nothing_to_release,
    ) -> None:
        assert rows.flags.c_contiguous and rows.dtype == np.float32 and rows.shape[1] == len(inputs.temporal)
        self.name = name
        self.inputs = inputs
        self.rows = rows
        self.times = times
        self.starts = starts
        self.target = target
        self._release = release

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def target_unit(self) -> str:
        """Return the unit of targets and forecasts."""
        return self.target.unit

    def batch(self, indices: ArrayLike) -> BatchArrays:
        """Gather windows.

        Args:
            indices: which windows, [batch].

        Returns:
            The batch in raw units.
        """
        last = self.last_rows(indices)
        history = self.history(last)
        future = self.rows[:, self.inputs.first_known :][_ahead(last, self.inputs.horizon)]  # [batch, horizon, known columns]
        return BatchArrays(history, future, None, self.targets(indices))

    def targets(self, indices: ArrayLike) -> np.ndarray:
        """Compute the targets, float32 [batch, horizon], in `target_unit`, without reading any history."""
        found = self.target.values(self.last_rows(indices), self.inputs.horizon)
        self._release()
        return found

    def history(self, last: np.ndarray) -> np.ndarray:
        """Gather the raw history up to some rows, float32 [batch, lookback, history columns].

        Args:
            last: the row of each history's last bar, int64 [batch].
        """
        past = last[:, None] + np.arange(1 - self.inputs.lookback, 1)  # [batch, lookback]
        history = history_rows(self.rows, past, self.inputs)
        self._release()
        return history

    def some(self, indices: np.ndarray) -> "Windows":
        """Return the windows at `indices` alone, in that order."""
        return Windows(self.name, self.inputs, self.rows, self.times, self.starts[indices], self.target, self._release)

    def without(self, names: Collection[str]) -> "Windows":
        """Return the same windows, of the same rows, their history without some columns."""
        inputs = self.inputs.without(names)
        return Windows(self.name, inputs, self.rows, self.times, self.starts, self.target, self._release)

    def row_blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield every row that a window uses in blocks: indices, int64 [n], and values, float32 [n, columns of a row]."""
        touched = self.touched()
        for start in range(0, len(touched), BLOCK):
            rows = start + np.flatnonzero(touched[start : start + BLOCK])
            if len(rows):
                yield rows, self.rows[rows]
                self._release()

    def target_blocks(self) -> Iterator[np.ndarray]:
        """Yield the targets of all windows in blocks, float32 [n, horizon]."""
        for indices in blocks(np.arange(len(self)), BLOCK):
            yield self.targets(indices)

    def touched(self) -> np.ndarray:
        """Mark the rows that any window uses, bool [rows]."""
        edges = np.zeros(len(self.rows) + 1, np.int32)
        edges[self.starts] += 1  # no two windows start at the same row
        edges[self.starts + self.inputs.lookback + self.inputs.horizon] -= 1
        return edges.cumsum()[:-1] > 0

    def naive(self, indices: ArrayLike) -> np.ndarray:
        """Compute the baseline's forecast, float32 [batch, horizon]: no change for bars, the season before for tables."""
        return self.target.naive(self.last_rows(indices), self.inputs.horizon)

    def last_close(self, indices: ArrayLike) -> np.ndarray:
        """Return the closing price of each window's last history bar, float64 [batch]; price = last close · exp(forecast). Bars only."""
        assert isinstance(self.target, LogReturn)
        return self.target.close[self.last_rows(indices)]

    def fingerprint(self) -> str:
        """Hash (SHA-256, hexadecimal) every value and time of the rows, the windows' starts, and the columns their history lacks."""
        digest = hashlib.sha256("\n".join(self.inputs.left_out).encode())
        for array in (self.rows, self.times, self.starts):
            for block in blocks(array, BLOCK):
                digest.update(block.data)
                self._release()
        for targets in self.target_blocks():
            digest.update(targets.data)
        return digest.hexdigest()

    def target_fingerprint(self) -> str:
        """Hash (SHA-256, hexadecimal) every target and its time, not the inputs: forecasts with equal hashes can be compared."""
        digest = hashlib.sha256()
        for indices, targets in zip(blocks(np.arange(len(self)), BLOCK), self.target_blocks(), strict=True):
            digest.update(self.target_times(indices).tobytes())
            digest.update(targets.tobytes())
        return digest.hexdigest()

    def last_rows(self, indices: ArrayLike) -> np.ndarray:
        """Return the row of each window's last history bar, int64 [batch]."""
        return self.starts[np.asarray(indices, np.int64)] + self.inputs.lookback - 1

    def target_times(self, indices: ArrayLike) -> np.ndarray:
        """Return the time of each target, int64 nanoseconds UTC [batch, horizon]."""
        return self.times[_ahead(self.last_rows(indices), self.inputs.horizon)]


class Datasets(NamedTuple):
    """The data of a run's training, and notes on it for the user."""

    train: Windows
    validation: Windows
    test: Windows | None
    scaling: Scaling
    target_scaling: TargetScaling
    notes: list[str]

    def without(self, names: Collection[str]) -> "Datasets":
        """Return the same data, the history of its windows without some columns."""
        test = None if self.test is None else self.test.without(names)
        return self._replace(train=self.train.without(names), validation=self.validation.without(names), test=test)


def _ahead(last: np.ndarray, horizon: int) -> np.ndarray:
    return last[:, None] + np.arange(1, horizon + 1)  # [batch, horizon]
