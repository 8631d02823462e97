"""A table of one series: time, target, and real columns with the roles that the recipe gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tftq.data.features.calendar import calendar_columns
from tftq.data.files import Columns, nanoseconds, numbers, read_file
from tftq.data.rows import RowOrder
from tftq.data.segments import Needs, usable, usual_step
from tftq.data.source import Keep, Source, Tail, in_memory, window_starts
from tftq.data.windows import Level
from tftq.errors import DataError
from tftq.spec.inputs import Column, Inputs

if TYPE_CHECKING:
    from tftq.recipe.schema import TableRecipe


LARGEST = 1e30  # leaves room for squares and sums in float32
RESOLVED_STEPS = 1000  # number of values that float32 must distinguish over a column's range


def read_table(recipe: TableRecipe, keep: Keep = in_memory, *, forecasting: bool = False, tail: Tail | None = None) -> Source:
    """Read a parquet or CSV table. The target's own past is the first observed column.

    Args:
        recipe: the recipe's `data` part.
        keep: stores the rows.
        forecasting: whether the windows are to be forecast rather than learned from: they need no horizon, incomplete rows may be the known
            future, and float32 need not distinguish a column's values, as no scaling is fitted to them.
        tail: the rows of the newest window instead of the whole file.

    Returns:
        Its rows, windows and target.

    Raises:
        DataError: a file, column or value that cannot be used.
    """
    if not (recipe.known or recipe.calendar):
        raise DataError(
            "data: nothing is known of the future; name columns known over the horizon in `data.known`, "
            "or calendar columns in `data.calendar`, such as [hour, weekday]"
        )
    file = read_file(recipe.path) if tail is None else tail.file
    _require(file.names, recipe)
    names = (recipe.target, *recipe.observed, *recipe.known)
    clock = [f"{cycle}_{part}" for cycle in recipe.calendar for part in ("sin", "cos")]
    if taken := sorted(set(clock) & set(names)):
        raise DataError(f"data.calendar makes columns that the table has too: {', '.join(taken)}; rename those of the table")
    times, notes = nanoseconds(file, recipe.time, recipe.time_zone, refuse_naive=False)
    order = RowOrder(np.ones(file.rows, bool), times, np.zeros(file.rows, np.int64), (recipe.target,), recipe.duplicates)
    values = np.empty((len(order), len(names) + len(clock)), np.float32)
    target = _column(file, order, recipe.target, learned=not forecasting)
    values[:, 0] = target
    for index, name in enumerate(names[1:], start=1):
        values[:, index] = _column(file, order, name, learned=not forecasting)
    rows = order.rows({recipe.target: target}, "drop" if forecasting else recipe.missing)
    needs = Needs(0, recipe.lookback, 0 if forecasting else recipe.horizon)
    segments, cuts = usable(rows, needs)

    values[:, len(names) :] = calendar_columns(rows.times, recipe.time_zone, recipe.calendar)
    observed = tuple(Column(name, "observed") for name in names[: 1 + len(recipe.observed)])
    known = tuple(Column(name, "known") for name in (*recipe.known, *clock))
    slots = (rows.times - rows.times[0]) // usual_step(rows)
    return Source(
        inputs=Inputs(observed + known, recipe.lookback, needs.horizon),
        rows=keep(*values.shape, iter([values])),
        times=rows.times,
        starts=window_starts(segments, needs),
        target=Level(target, slots, recipe.season, recipe.target),
        notes=notes + rows.notes + cuts,
    )


def _column(file: Columns, order: RowOrder, name: str, *, learned: bool) -> np.ndarray:
    """Return a sorted column; refuse one whose values float32 cannot hold or, for training, distinguish."""
    values = order.column(name, numbers(file, name))
    finite = values[np.isfinite(values)]
    largest, width = np.abs(finite).max(initial=0), np.ptp(finite) if len(finite) else 0.0
    if largest > LARGEST:
        raise DataError(f"column {name!r} holds {largest:g}; allowed are numbers up to {LARGEST:g}: scale the column down")
    step = np.spacing(np.float32(largest))
    if learned and 0 < width < RESOLVED_STEPS * step:
        raise DataError(
            f"column {name!r}: its values lie within {width:g} of each other near {largest:g}, where float32 tells only steps of "
            f"{step:g} apart; subtract a constant from the column"
        )
    return values


def _require(columns: list[str], recipe: TableRecipe) -> None:
    wanted = {"data.time": (recipe.time,), "data.target": (recipe.target,), "data.known": recipe.known, "data.observed": recipe.observed}
    absent = [f"{option}: {name}" for option, names in wanted.items() for name in names if name not in columns]
    if absent:
        raise DataError(f"{recipe.path} lacks columns named in the recipe ({'; '.join(absent)}); it has {', '.join(columns)}")
