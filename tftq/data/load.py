"""From the recipe's `data` part to the datasets of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tftq.data.bars import load_bars
from tftq.data.files import iso
from tftq.data.scaling import Scaling, TargetScaling, fit_columns
from tftq.data.split import split_by_time
from tftq.data.table import read_table
from tftq.data.windows import Datasets, Level, Windows
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
        DataError: data that cannot be used as it lies.
    """
    source = load_bars(recipe) if recipe.kind == "bars" else read_table(recipe)
    lookback, horizon = source.inputs.lookback, source.inputs.horizon
    first = source.times[source.starts + lookback].numpy()
    last = source.times[source.starts + lookback + horizon - 1].numpy()
    split = split_by_time(first, last, recipe.validation, recipe.test)
    train, validation = (
        Windows(name, source.inputs, source.rows, source.times, source.starts[torch.from_numpy(part)], source.target)
        for name, part in (("train", split.train), ("validation", split.validation))
    )
    test = None
    if recipe.test:
        test = Windows("test", source.inputs, source.rows, source.times, source.starts[torch.from_numpy(split.test)], source.target)

    for part in (train, validation, test):
        if part is not None:
            _check_finite(part)
    history, constant = fit_columns(source.inputs.history, source.rows[_touched(train)].numpy())
    target_scaling, flat = _fit_target(train)
    parts = [part for part in (train, validation, test) if part is not None]
    notes = [*source.notes, *constant, *flat, *map(_range, parts), *_unseasonal(parts[1:])]
    if split.purged:
        notes.append(f"{split.purged} windows left out because their targets cross a border between parts")
    return Datasets(train, validation, test, Scaling(history, None), target_scaling, notes)


def _touched(train: Windows) -> torch.Tensor:
    """Which rows any training window touches, bool [rows]; none of them is a target in another part."""
    width = train.inputs.lookback + train.inputs.horizon
    edges = torch.zeros(len(train.rows) + 1, dtype=torch.int64)
    edges.index_add_(0, train.starts, torch.ones_like(train.starts))
    edges.index_add_(0, train.starts + width, -torch.ones_like(train.starts))
    return edges.cumsum(0)[:-1] > 0


def _check_finite(part: Windows) -> None:
    """Refuse features that overflowed: prices that leap by many orders of magnitude make some."""
    touched = torch.nonzero(_touched(part)).flatten()
    bad = ~part.rows[touched].isfinite()
    if bad.any():
        row, column = torch.nonzero(bad)[0].tolist()
        name, time = part.inputs.history[column].name, iso(int(part.times[touched[row]]))
        raise DataError(f"feature {name!r} is not finite at {time}, in {int(bad.any(1).sum())} rows in all; look at the values there")


def _fit_target(train: Windows) -> tuple[TargetScaling, list[str]]:
    horizon = train.inputs.horizon
    if isinstance(train.target, Level):
        values = train.target.column[_touched(train)]
        center, scale = np.full(horizon, values.mean().item()), np.full(horizon, values.std(correction=0).item())
    else:  # the mean return of a training part is noise, so that the center is no change
        targets = train.target.values(train.last_rows(torch.arange(len(train))), horizon).double()  # [windows, horizon]
        center, scale = np.zeros(horizon), targets.std(dim=0, correction=0).numpy()
    flat = scale <= 0
    notes = [f"the target is constant over the training part at {int(flat.sum())} of {horizon} steps; scaled by 1"] if flat.any() else []
    return TargetScaling(center.astype(np.float32), np.where(flat, 1, scale).astype(np.float32)), notes


def _range(part: Windows) -> str:
    ends = part.target_times(torch.arange(len(part)))
    return f"{part.name}: {len(part)} windows, targets from {iso(int(ends.min()))} to {iso(int(ends.max()))}"


def _unseasonal(parts: list[Windows]) -> list[str]:
    notes = []
    for part in parts:
        if isinstance(part.target, Level):
            count = part.target.without_season(part.last_rows(torch.arange(len(part))), part.inputs.horizon)
            if count:
                notes.append(f"{part.name}: {count} values of the naive baseline have no row a season before; the last value stands in")
    return notes
