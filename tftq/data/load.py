"""Build the datasets of a run from the recipe's `data` part."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tftq.data.bars import load_bars
from tftq.data.cache import cached
from tftq.data.files import iso
from tftq.data.scaling import Scaling, TargetScaling, fit_columns, moments
from tftq.data.source import Keep, Source, in_memory
from tftq.data.split import split_by_time
from tftq.data.table import read_table
from tftq.data.windows import BLOCK, Datasets, Level, Windows, blocks
from tftq.errors import DataError

if TYPE_CHECKING:
    from tftq.recipe.schema import BarsRecipe, TableRecipe


def load_datasets(recipe: BarsRecipe | TableRecipe) -> Datasets:
    """Read, cut, split and fit the scalings of the data that a recipe names.

    Args:
        recipe: the recipe's `data` part.

    Returns:
        Windows of each part, the scalings fitted on the training part, and notes for the user.

    Raises:
        DataError: data that cannot be used.
    """
    source = _read(recipe, in_memory) if recipe.cache is None else cached(recipe, recipe.cache, partial(_read, recipe))
    lookback, horizon = source.inputs.lookback, source.inputs.horizon
    first = source.times[source.starts + lookback]
    last = source.times[source.starts + lookback + horizon - 1]
    split = split_by_time(first, last, recipe.validation, recipe.test)
    train, validation = _part("train", source, split.train), _part("validation", source, split.validation)
    test = _part("test", source, split.test) if recipe.test else None

    parts = [part for part in (train, validation, test) if part is not None]
    for part in parts:
        _check_finite(part)
    # No row of a training window is a target in another part.
    history, constant = fit_columns(source.inputs.temporal, (rows for _, rows in train.row_blocks()))
    target_scaling, flat = _fit_target(train)
    notes = [*source.notes, *constant, *flat, *map(_range, parts), *_unseasonal(parts[1:])]
    if split.purged:
        notes.append(f"{split.purged} windows left out because their targets cross a border between parts")
    return Datasets(train, validation, test, Scaling(history, None), target_scaling, notes)


def _read(recipe: BarsRecipe | TableRecipe, keep: Keep) -> Source:
    return load_bars(recipe, keep) if recipe.kind == "bars" else read_table(recipe, keep)


def _part(name: str, source: Source, windows: np.ndarray) -> Windows:
    starts = source.starts[windows]
    return Windows(name, source.inputs, source.rows, source.times, starts, source.target, source.release)


def _check_finite(part: Windows) -> None:
    """Refuse features that overflowed, as from prices that leap by many orders of magnitude."""
    first, count = "", 0
    for rows, values in part.row_blocks():
        bad = np.argwhere(~np.isfinite(values))  # [found, (row, column)], in the order of the rows
        if len(bad) and not first:
            row, column = bad[0].tolist()
            first = f"feature {part.inputs.temporal[column].name!r} is not finite at {iso(int(part.times[rows[row]]))}"
        count += len(np.unique(bad[:, 0]))
    if count:
        raise DataError(f"{first}, in {count} rows in all; look at the values there")


def _fit_target(train: Windows) -> tuple[TargetScaling, list[str]]:
    horizon = train.inputs.horizon
    if isinstance(train.target, Level):
        values = train.target.column[train.touched()]
        center, scale = np.full(horizon, values.mean()), np.full(horizon, values.std())
    else:  # the mean return of a training part is noise, so that the center is no change
        center, scale = np.zeros(horizon), moments(train.target_blocks()).deviation
    flat = scale <= 0
    notes = [f"the target is constant over the training part at {int(flat.sum())} of {horizon} steps; scaled by 1"] if flat.any() else []
    return TargetScaling(center.astype(np.float32), np.where(flat, 1, scale).astype(np.float32)), notes


def _range(part: Windows) -> str:
    first = part.starts + part.inputs.lookback
    begin, end = part.times[first].min(), part.times[first + part.inputs.horizon - 1].max()
    return f"{part.name}: {len(part)} windows, targets from {iso(int(begin))} to {iso(int(end))}"


def _unseasonal(parts: list[Windows]) -> list[str]:
    notes = []
    for part in parts:
        if isinstance(part.target, Level):
            last = part.last_rows(np.arange(len(part)))
            count = sum(part.target.without_season(some, part.inputs.horizon) for some in blocks(last, BLOCK))
            if count:
                notes.append(f"{part.name}: {count} values of the naive baseline have no row a season before; the last value stands in")
    return notes
