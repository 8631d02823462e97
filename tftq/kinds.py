"""All types of recipes, and the job and the plan of those that train: the one place that knows them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftq.agents.recipe import AGENT, AgentRecipe
from tftq.console import Console
from tftq.ensemble.recipe import ENSEMBLE
from tftq.recipe.forecaster import FORECASTER
from tftq.recipe.load import load_document
from tftq.recipe.recipe_type import RecipeType
from tftq.recipe.schema import Recipe

# What a type needs is imported when it is run or planned: neither of them loads what only the other needs.


@dataclass(frozen=True)
class _Trained:
    """The job and the plan of a type of recipe.

    Attributes:
        run: of the recipe and whether to resume.
        plan: of the recipe, its file, the overrides, where to print the plan and where its progress.
    """

    run: Callable[[Any, bool], object]
    plan: Callable[[Any, Path, Sequence[str], Console, Console], dict[str, Any]]


def _run_forecaster(recipe: Recipe, resume: bool) -> object:
    from tftq.jobs.run import run

    return run(recipe, resume=resume)


def _plan_forecaster(recipe: Recipe, path: Path, overrides: Sequence[str], console: Console, progress: Console) -> dict[str, Any]:
    from tftq.jobs.plan import plan_forecaster

    return plan_forecaster(recipe, path, overrides, console, progress)


def _run_agent(recipe: AgentRecipe, resume: bool) -> object:
    from tftq.agents.job import run_agent

    return run_agent(recipe, resume=resume)


def _plan_agent(recipe: AgentRecipe, path: Path, overrides: Sequence[str], console: Console, progress: Console) -> dict[str, Any]:
    from tftq.agents.plan import plan_agent

    return plan_agent(recipe, console, progress)


RECIPE_TYPES: tuple[RecipeType[Any], ...] = (FORECASTER, AGENT, ENSEMBLE)  # `tftq ensemble` runs the last

_TRAINED: dict[RecipeType[Any], _Trained] = {
    FORECASTER: _Trained(_run_forecaster, _plan_forecaster),
    AGENT: _Trained(_run_agent, _plan_agent),
}


def run(path: Path, overrides: Sequence[str] = (), *, resume: bool = False) -> None:
    """Run the recipe of a forecaster or of an agent.

    Args:
        path: a YAML file.
        overrides: `key=value` each.
        resume: resume an interrupted run in its folder.

    Raises:
        TftqError: of the recipe, the data, the folder, the device or an exported model.
    """
    recipe, trained = _load(path, overrides)
    trained.run(recipe, resume)


def plan(path: Path, overrides: Sequence[str] = (), console: Console | None = None, progress: Console | None = None) -> dict[str, Any]:
    """Plan the memory of a recipe and print it.

    Args:
        path: a YAML file.
        overrides: `key=value` each.
        console: where to print the plan; by default nowhere.
        progress: the console for steps that take long; by default none.

    Returns:
        The plan in plain types, with at least fits, budget_bytes and phases.
    """
    recipe, trained = _load(path, overrides)
    quiet = Console(quiet=True)
    return trained.plan(recipe, path, overrides, console or quiet, progress or quiet)


def _load(path: Path, overrides: Sequence[str]) -> tuple[Any, _Trained]:
    recipe = load_document(path, overrides, among=tuple(_TRAINED))
    return recipe, next(trained for recipe_type, trained in _TRAINED.items() if isinstance(recipe, recipe_type.schema))
