"""Look for changes of a recipe that make it need less memory, each planned before it is recommended."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tftq.errors import RecipeError
from tftq.evaluate.precision import Name
from tftq.plan.training import Planner, StagePlan
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe

WORTHWHILE = 0.01  # of the peak, the least that a change must save


def peaks_by_precision(recipe: Recipe, planner: Planner, known: StagePlan) -> dict[Name, int]:
    """Plan the peak of training in each number format, in bytes."""
    names: tuple[Name, ...] = get_args(Name)

    def peak(name: Name) -> int:
        if name == recipe.train.precision:
            return known.update.peak_bytes
        changed = recipe.model_copy(update={"train": recipe.train.model_copy(update={"precision": name})})
        return planner.plan_stage(changed, "train", known.batch_size).update.peak_bytes

    return {name: peak(name) for name in names}


@dataclass(frozen=True)
class Advice:
    """A change of the recipe, as one would write it on the command line, and what it saves of the peak of the stages of training."""

    change: str
    saved_bytes: int
    peak_bytes: int


def advise(
    path: Path,
    overrides: Sequence[str],
    recipe: Recipe,
    planner: Planner,
    plans: Mapping[str, StagePlan],
    trying: Callable[[str], None],
) -> list[Advice]:
    """Plan a recipe with each of several changes, and keep those that lower its peak.

    Args:
        path: of the recipe.
        overrides: that it was read with.
        recipe: as read.
        planner: for its data and device.
        plans: of its stages.
        trying: called with each change before it is planned.

    Returns:
        The changes that help, the most helpful first.
    """
    before = _peak(recipe, planner, plans)
    advice = []
    for changes in _changes(recipe):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of options that have no effect any more
                changed = load_recipe(path, [*_others(overrides, changes), *changes])
        except RecipeError:  # it contradicts another option, or there is no such option
            continue
        trying(" ".join(changes))
        after = _peak(changed, planner, planner.plan(changed)) if changed != recipe else before
        if after < (1 - WORTHWHILE) * before:
            advice.append(Advice(" ".join(changes), before - after, after))
    return sorted(advice, key=lambda entry: entry.peak_bytes)


def _others(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Leave out the overrides of options that the changes set: each may be given once."""
    changed = {change.split("=")[0] for change in changes}
    return [override for override in overrides if override.split("=")[0] not in changed]


def _peak(recipe: Recipe, planner: Planner, plans: Mapping[str, StagePlan]) -> int:
    return max(planner.needed_bytes(recipe, plan) for plan in plans.values()) - planner.allowance_bytes


def _changes(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Yield what may help, each as the words of a command line."""
    model, train = recipe.model, recipe.train
    if train.batch_size % 2 == 0:
        same_update = () if train.optimizer.in_backward else (f"train.accumulate={2 * train.accumulate}",)
        yield f"train.batch_size={train.batch_size // 2}", *same_update
    if recipe.validate.batch_size is not None and recipe.validate.batch_size > train.batch_size:
        yield (f"validate.batch_size={train.batch_size}",)
    if train.precision == "fp32":
        yield ("train.precision=bf16",)
    if model.hidden % 2 == 0:
        yield (f"model.hidden={model.hidden // 2}",)
    if model.kind == "tft":
        if model.form != "knots":
            yield ("model.form=knots",)
        elif model.knots > 8:
            yield (f"model.knots={model.knots // 2}",)
        yield ("model.gates=shared",)
    else:
        if model.layers % 2 == 0:
            yield (f"model.layers={model.layers // 2}",)
        if (rows := min(model.chunk, recipe.data.lookback + recipe.data.horizon)) > 1:
            yield (f"model.chunk={-(-rows // 2)}",)
    yield ("train.optimizer.name=adamw8bit",)
    yield "train.optimizer.in_backward=true", "train.clip_norm=null"
