"""All windows to forecast: those with a complete history, whether or not their outcome is known yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tftq.data.bars import load_bars
from tftq.data.features.calendar import calendar_columns
from tftq.data.features.table import clock_features
from tftq.data.files import duration, iso
from tftq.data.latest import NotStreamedError, newest_rows
from tftq.data.source import Source, Tail
from tftq.data.table import read_table
from tftq.data.windows import LogReturn, Target, history_rows
from tftq.errors import DataError
from tftq.spec.inputs import Column, Inputs

if TYPE_CHECKING:
    from tftq.recipe.schema import BarsRecipe, TableRecipe


class Outcome(NamedTuple):
    """The observed outcome of windows whose whole horizon is in the past.

    known bool [batch]; target and naive float32 [known, horizon], in the target's unit.
    """

    known: np.ndarray
    target: np.ndarray
    naive: np.ndarray


@dataclass(frozen=True)
class History:
    """Windows to forecast, in order of time.

    Args:
        recipe: how the columns are made.
        inputs: the columns and the shape of a window.
        rows: float32 [rows, columns of a row], raw.
        times: int64 nanoseconds UTC [rows].
        last: int64 [windows], increasing: the row of each window's last history row.
        ahead: int64 [windows]: rows that follow it without a break.
        step: between rows, in nanoseconds.
        target: what is forecast.
        notes: what a user should know.
    """

    recipe: BarsRecipe | TableRecipe
    inputs: Inputs
    rows: np.ndarray
    times: np.ndarray
    last: np.ndarray
    ahead: np.ndarray
    step: int
    target: Target
    notes: list[str]

    def __len__(self) -> int:
        return len(self.last)

    def origins(self, indices: np.ndarray) -> np.ndarray:
        """Return the time of each window's last history row, int64 nanoseconds UTC [batch]."""
        return self.times[self.last[indices]]

    def target_times(self, indices: np.ndarray) -> np.ndarray:
        """Return the times that are forecast, int64 nanoseconds UTC [batch, horizon]: the next steps, regardless of sessions."""
        return self.origins(indices)[:, None] + self.step * np.arange(1, self.inputs.horizon + 1)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gather the raw inputs of windows.

        Args:
            indices: which windows, int64 [batch].

        Returns:
            float32 [batch, lookback, history columns] and [batch, horizon, known columns].
        """
        last = self.last[indices]
        past = last[:, None] + np.arange(1 - self.inputs.lookback, 1)  # [batch, lookback]
        history = history_rows(self.rows, past, self.inputs)
        times = self.target_times(indices)
        clock = _clock(self.recipe, times.reshape(-1)).astype(np.float32)
        future = clock.reshape(*times.shape, clock.shape[1])  # [batch, horizon, clock columns]
        if self.recipe.kind == "table" and self.recipe.known:
            given = self.rows[:, self.inputs.first_known :][:, : len(self.recipe.known)]
            future = np.concatenate([given[last[:, None] + np.arange(1, self.inputs.horizon + 1)], future], axis=-1)
        return history, future

    def without(self, names: Collection[str]) -> History:
        """Return the same windows, their history without some columns."""
        return replace(self, inputs=self.inputs.without(names))

    def outcome(self, indices: np.ndarray) -> Outcome:
        """Compute the observed outcome of windows, and the baseline's forecast of it."""
        known = self.ahead[indices] >= self.inputs.horizon
        last = self.last[indices][known]
        horizon = self.inputs.horizon
        return Outcome(known, self.target.values(last, horizon), self.target.naive(last, horizon))

    def last_close(self, indices: np.ndarray) -> np.ndarray | None:
        """Return the closing price of each window's last bar, float64 [batch]; None for tables."""
        return self.target.close[self.last[indices]] if isinstance(self.target, LogReturn) else None


def _clock(recipe: BarsRecipe | TableRecipe, times: np.ndarray) -> np.ndarray:
    """Compute the columns that are known at any time, float64 [times, clock columns]."""
    if recipe.kind == "bars":
        return clock_features(times, recipe.time_zone)
    return calendar_columns(times, recipe.time_zone, recipe.calendar)


def read_history(recipe: BarsRecipe | TableRecipe, step: int, *, newest: bool = False) -> History:
    """Read the windows of a file of data that can be forecast.

    Args:
        recipe: the `data` part of a recipe, with the path of the file.
        step: between the rows of a window, in nanoseconds.
        newest: read only the newest window, from the end of the file.

    Raises:
        DataError: a file, column or value that cannot be used, rows at another step, or no window; for the newest window also values not
            known of its horizon.
    """
    if not newest:
        return _windows(_read(recipe), recipe, step, newest=False)
    try:
        tail = newest_rows(recipe, step)
    except NotStreamedError as reason:
        history = _windows(_read(recipe), recipe, step, newest=True)
        history.notes.append(f"read the whole file to find its newest window: {reason}")
        return history
    source = _read(recipe, tail)
    notes = [*source.notes, *([tail.note] if tail.note else [])]
    return _windows(replace(source, notes=notes), recipe, step, newest=True)


def _read(recipe: BarsRecipe | TableRecipe, tail: Tail | None = None) -> Source:
    """Read rows, and the starts of the windows with a complete history, whether or not their horizon is known."""
    if recipe.kind == "bars":
        return load_bars(recipe, horizon=0, tail=tail)
    source = read_table(recipe, forecasting=True, tail=tail)
    absent = ~np.isfinite(source.rows)
    complete = int(np.flatnonzero(~absent.any(1))[-1])  # the last existing row
    notes = source.notes
    if recipe.missing == "refuse":
        _refuse_missing(source, absent[:complete])
        notes = [note for note in notes if "missing" not in note]  # the missing part is the future
    if complete + 1 < len(source.rows):
        begin = iso(int(source.times[complete + 1]))
        notes = [*notes, f"the last {len(source.rows) - complete - 1} rows, from {begin} on, are taken for what is known of the future"]
    return replace(source, notes=notes)


def _refuse_missing(source: Source, absent: np.ndarray) -> None:
    faults = [
        f"column {column.name!r}: {int(missing.sum())} missing, first at {iso(int(source.times[missing.argmax()]))}"
        for column, missing in zip(source.inputs.temporal, absent.T, strict=True)
        if missing.any()
    ]
    if faults:
        raise DataError(f"{'; '.join(faults)}; set `data.missing: drop` to leave out the windows that touch them")


def _windows(source: Source, recipe: BarsRecipe | TableRecipe, step: int, *, newest: bool) -> History:
    horizon = recipe.horizon
    last = source.starts + recipe.lookback - 1
    _check_step(source, recipe, step)
    if (np.diff(source.times[last]) <= 0).any():
        raise DataError(
            f"{recipe.path} holds several contracts at the same times; choose one with data.symbol=... ({'; '.join(source.notes)})"
        )
    # Windows of one segment end in consecutive rows; where a window is a single row, so do those of neighbouring segments.
    apart = (np.diff(last) != 1) | (np.diff(source.times[last]) != step)
    breaks = np.append(apart, True)
    ends = last[breaks]
    ahead = ends[breaks.cumsum() - breaks] - last
    notes = list(source.notes)
    chosen = np.ones(len(last), bool)
    if recipe.kind == "table" and recipe.known:
        chosen = _rows_known_ahead(source, recipe, step)[last] >= horizon
        if not chosen.any() or (newest and not chosen[-1]):
            raise DataError(_unknown(source, recipe, int(last[-1]), step))
        if not chosen.all():
            notes.append(f"{int((~chosen).sum())} windows left out; of the last, {_unknown(source, recipe, int(last[~chosen][-1]), step)}")
    if recipe.kind == "bars":
        notes.append(
            f"a forecast is of the next {horizon} steps of {duration(step)} after its last bar; breaks of the session are not foreseen"
        )
    if newest:
        chosen = np.arange(len(last)) == len(last) - 1
    return History(
        recipe=recipe,
        inputs=replace(source.inputs, horizon=horizon),
        rows=source.rows,
        times=source.times,
        last=last[chosen],
        ahead=ahead[chosen],
        step=step,
        target=source.target,
        notes=notes,
    )


def _check_step(source: Source, recipe: BarsRecipe | TableRecipe, step: int) -> None:
    if recipe.lookback == 1:
        return  # one row has no step
    first = int(source.starts[0])
    found = int(source.times[first + 1] - source.times[first])
    if found != step:
        raise DataError(
            f"{recipe.path}: rows are {duration(found)} apart, the model was trained on steps of {duration(step)}; give such rows"
        )


def _known(source: Source, recipe: TableRecipe) -> tuple[tuple[Column, ...], np.ndarray]:
    """Return the table's own known columns, and whether each of their values is present [rows, columns]."""
    first = source.inputs.first_known
    columns = slice(first, first + len(recipe.known))
    return source.inputs.temporal[columns], np.isfinite(source.rows[:, columns])


def _rows_known_ahead(source: Source, recipe: TableRecipe, step: int) -> np.ndarray:
    """Count the rows that follow each one at the step with every known column, int64 [rows]."""
    _, there = _known(source, recipe)
    row = np.arange(len(source.times))
    stops = np.ones(len(row), bool)  # the next row is missing, late or lacks a value
    stops[:-1] = (np.diff(source.times) != step) | ~there[1:].all(1)
    stop_at = np.minimum.accumulate(np.where(stops, row, len(row))[::-1])[::-1]
    return stop_at - row


def _unknown(source: Source, recipe: TableRecipe, last: int, step: int) -> str:
    """List the known columns that lack values over the horizon of the window that ends in a row."""
    columns, there = _known(source, recipe)
    wanted = source.times[last] + step * np.arange(1, recipe.horizon + 1)
    row = np.minimum(np.searchsorted(source.times, wanted), len(source.times) - 1)
    given = (source.times[row] == wanted)[:, None] & there[row]  # [horizon, columns]
    lacking = [
        f"column {column.name!r} at {int((~has).sum())} of {recipe.horizon} times from {iso(int(wanted[~has][0]))} to "
        f"{iso(int(wanted[~has][-1]))}"
        for column, has in zip(columns, given.T, strict=True)
        if not has.all()
    ]
    return (
        f"the forecast after {iso(int(source.times[last]))} lacks {'; '.join(lacking)}; append rows with these times that hold the known "
        "columns and leave the others empty"
    )
