"""A table of one series: time, target, and real columns with the roles that the recipe gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from tftq.data.calendar import circle
from tftq.data.columns import Column, Inputs
from tftq.data.files import nanoseconds, numbers, read_file, wall_clock
from tftq.data.rows import tidy_rows
from tftq.data.segments import Needs, usable, usual_step
from tftq.data.source import Source, window_starts
from tftq.data.windows import Level
from tftq.errors import DataError

if TYPE_CHECKING:
    from tftq.recipe.schema import TableRecipe


LARGEST = 1e30  # leaves room for squares and sums in float32
RESOLVED_STEPS = 1000  # float32 must tell so many values apart over a column's range

def read_table(recipe: TableRecipe) -> Source:
    """Read a parquet or CSV table. The target's own past is the first observed column.

    Args:
        recipe: the recipe's `data` part.

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
    table = read_file(recipe.path)
    _require(table, recipe)
    names = (recipe.target, *recipe.observed, *recipe.known)
    columns = {name: numbers(table, name) for name in names}
    times, notes = nanoseconds(table, recipe.time, recipe.time_zone, refuse_naive=False)
    kept, series = np.ones(len(times), bool), np.zeros(len(times), np.int64)
    rows = tidy_rows(kept, times, series, (recipe.target,), columns, recipe.duplicates, recipe.missing)
    _check_float32(rows.columns)
    needs = Needs(0, recipe.lookback, recipe.horizon)
    segments, cuts = usable(rows, needs)

    wall = wall_clock(rows.times, recipe.time_zone)
    clock = {f"{cycle}_{part}": wave for cycle in recipe.calendar for part, wave in zip(("sin", "cos"), circle(wall, cycle), strict=True)}
    if taken := sorted(set(clock) & set(names)):
        raise DataError(f"data.calendar makes columns that the table has too: {', '.join(taken)}; rename those of the table")
    observed = tuple(Column(name, "observed") for name in names[: 1 + len(recipe.observed)])
    known = tuple(Column(name, "known") for name in (*recipe.known, *clock))
    values = np.stack([*rows.columns.values(), *clock.values()], axis=1).astype(np.float32)
    slots = (rows.times - rows.times[0]) // usual_step(rows)
    return Source(
        inputs=Inputs(observed + known, recipe.lookback, recipe.horizon),
        rows=torch.from_numpy(values),
        times=torch.from_numpy(rows.times),
        starts=window_starts(segments, needs),
        target=Level(torch.from_numpy(rows.columns[recipe.target]), torch.from_numpy(slots), recipe.season, recipe.target),
        notes=notes + rows.notes + cuts,
    )


def _check_float32(columns: dict[str, np.ndarray]) -> None:
    """Refuse columns whose values float32, which everything after computes in, could not hold or could not tell apart."""
    for name, values in columns.items():
        finite = values[np.isfinite(values)]
        largest, width = np.abs(finite).max(initial=0), np.ptp(finite) if len(finite) else 0.0
        if largest > LARGEST:
            raise DataError(f"column {name!r} holds {largest:g}; allowed are numbers up to {LARGEST:g}: scale the column down")
        step = np.spacing(np.float32(largest))
        if 0 < width < RESOLVED_STEPS * step:
            raise DataError(
                f"column {name!r}: its values lie within {width:g} of each other near {largest:g}, where float32 tells only steps of "
                f"{step:g} apart; subtract a constant from the column"
            )


def _require(table: pa.Table, recipe: TableRecipe) -> None:
    wanted = {"data.time": (recipe.time,), "data.target": (recipe.target,), "data.known": recipe.known, "data.observed": recipe.observed}
    absent = [f"{option}: {name}" for option, names in wanted.items() for name in names if name not in table.column_names]
    if absent:
        raise DataError(f"{recipe.path} lacks columns named in the recipe ({'; '.join(absent)}); it has {', '.join(table.column_names)}")
