"""From a file and the command line to a recipe; every error at once, and no option that silently does nothing."""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tftq.errors import RecipeError
from tftq.recipe.known import allowed, choices, closest, fields, members, nearest, type_at
from tftq.recipe.overrides import OverrideError, apply_override, holds, make_absolute, take_out, without_empty_sections
from tftq.recipe.schema import BarsRecipe, Recipe, TableRecipe
from tftq.recipe.text import KeyPath, Problem, read_document, write_document


class RecipeWarning(UserWarning):
    """An option that has no effect in the recipe it stands in."""


_KINDS = {"bars": BarsRecipe, "table": TableRecipe}

_IDLE: tuple[tuple[KeyPath, Callable[[Recipe], bool], str], ...] = (
    (
        ("model", "knots"),
        lambda recipe: recipe.model.form != "knots",
        "model.form is not knots, so that each variable gets the knots that its curve needs",
    ),
    (("quant", "calibration_windows"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "calibration"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "percentile"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "percentile"), lambda recipe: recipe.quant.calibration != "percentile", "quant.calibration is not percentile"),
    (("quant", "weights"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "lstm"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "keep_float"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "sensitivity"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "loss_budget"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    (("quant", "qat"), lambda recipe: recipe.quant.method != "qat", "quant.method is not qat"),
    (("quant", "qat", "range_lr"), lambda recipe: recipe.quant.qat.ranges == "observe", "quant.qat.ranges is observe"),
    (
        ("quant", "qat", "schedule", "floor"),
        lambda recipe: recipe.quant.qat.schedule.warmup == recipe.quant.qat.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    (
        ("quant", "prune", "schedule", "floor"),
        lambda recipe: recipe.quant.prune is not None and recipe.quant.prune.schedule.warmup == recipe.quant.prune.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    (
        ("train", "schedule", "floor"),
        lambda recipe: recipe.train.schedule.warmup == recipe.train.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    (
        ("train", "patience"),
        lambda recipe: recipe.train.patience is not None and recipe.train.patience >= recipe.train.epochs,
        "training ends after train.epochs, no later",
    ),
    (("validate", "offload_optimizer"), lambda recipe: recipe.device == "cpu", "device is cpu, so there is nowhere to take it"),
    (("validate", "offload_optimizer"), lambda recipe: recipe.validate.device == "cpu", "validate.device is cpu, so nothing is in its way"),
    (("validate", "device"), lambda recipe: recipe.device == "cpu", "device is cpu, so that validation is there as well"),
)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, with the command line's word last.

    Args:
        path: a YAML file; relative paths in it are relative to its folder.
        overrides: `key=value` each, as `train.optimizer.lr=1e-3`; relative paths are relative to the working directory. `null` where
            null is no value of the key, and for a whole section, takes the key out, so that its default holds.

    Returns:
        the recipe, its paths absolute. An option without effect is warned of (`RecipeWarning`) and holds its default.

    Raises:
        RecipeError: the file cannot be read, or lists every error with its path, what was found and what is allowed.
    """
    document = read_document(path)
    problems = [Problem(key, f"stands twice, on line {first} and line {second}; allowed: once") for key, first, second in document.twice]
    values = without_empty_sections(document.values)
    make_absolute(values, path.parent)
    given: set[KeyPath] = set()
    for override in overrides:
        try:
            apply_override(values, override, given)
        except OverrideError as error:
            problems.append(error.problem)
    recipe, refused = _validate(values)
    problems += refused
    if recipe is None or problems:
        raise RecipeError(_report(path, problems, document.lines, given))
    for key, idle, reason in _IDLE:
        if holds(values, key) and idle(recipe):
            warnings.warn(f"{'.'.join(key)} has no effect: {reason}", RecipeWarning, stacklevel=2)
            take_out(values, key)
    return Recipe.model_validate(values)


def data_recipe(values: Mapping[str, Any], overrides: Sequence[str], changeable: Sequence[str]) -> BarsRecipe | TableRecipe:
    """The `data` part of a recipe that was resolved before, with the command line's word last.

    Args:
        values: the part, its paths absolute.
        overrides: `key=value` each, as `data.symbol=ESH4`.
        changeable: the options below `data` that overrides may set.

    Raises:
        RecipeError: another option than those, or a value that is not allowed.
    """
    document: dict[str, Any] = {"name": "data", "data": dict(values)}
    given: set[KeyPath] = set()
    for override in overrides:
        apply_override(document, override, given)
    if fixed := sorted(".".join(key) for key in given if key not in {("data", name) for name in changeable}):
        raise RecipeError(f"{', '.join(fixed)}: cannot be changed here; allowed: {', '.join(f'data.{name}' for name in changeable)}")
    recipe, problems = _validate(document)
    if recipe is None:
        raise RecipeError("; ".join(f"{'.'.join(problem.path)}: {problem.words}" for problem in problems))
    return recipe.data


def resolved_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, every option that has an effect written out; `load_recipe` reads an equal recipe from it."""
    return write_document(_effective(recipe))


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 (hexadecimal) of what the recipe does: of every option with an effect on it: `name`, `out` and `data.cache` have none."""
    values = {key: value for key, value in _effective(recipe).items() if key not in ("name", "out")}
    del values["data"]["cache"]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _effective(recipe: Recipe) -> dict[str, Any]:
    values = recipe.model_dump(mode="json")
    for key, idle, _ in _IDLE:
        if holds(values, key) and idle(recipe):
            take_out(values, key)
    return values


def _validate(values: dict[str, Any]) -> tuple[Recipe | None, list[Problem]]:
    try:
        return Recipe.model_validate(values), []
    except ValidationError as error:
        return None, [_explain(details, values) for details in error.errors(include_url=False)]


def _explain(details: ErrorDetails, values: dict[str, Any]) -> Problem:
    """One of pydantic's errors with the path and in the words of a recipe."""
    path = tuple(str(part) for part in details["loc"] if part != "[key]")
    section: Any = None
    if path[0] == "data" and len(path) > 1:
        section, path = _KINDS[path[1]], ("data", *path[2:])  # pydantic names the kind, the file does not
    match details["type"]:
        case "contradiction":
            context = details["ctx"]
            return Problem((*path, *filter(None, [context["key"]])), context["message"])
        case "extra_forbidden" | "invalid_key" if section is not None and type_at(path) is not None:
            kind = values["data"]["kind"]
            return Problem(path, f"is no option of data.kind {kind}; allowed: {', '.join(fields(section))}")
        case "extra_forbidden" | "invalid_key":
            return Problem(path, f"unknown key; {nearest(path, fields(section or type_at(path[:-1])))}")
        case "union_tag_not_found" | "missing":
            path = (*path, "kind") if details["type"] == "union_tag_not_found" else path
            return Problem(path, f"missing; allowed: {allowed(type_at(path))}")
        case "union_tag_invalid":
            return Problem(("data", "kind"), _found(values["data"]["kind"], ("data", "kind")))
    return Problem(path, _found(details["input"], path))


def _found(value: Any, path: KeyPath) -> str:
    kind = type_at(path)
    value = list(value) if isinstance(value, tuple) else value
    advice = ""
    if isinstance(value, str) and (word := closest(value, choices(kind))) is not None:
        advice = f"; did you mean {word}?"
    elif str in members(kind) and isinstance(value, bool | int | float):
        advice = "; put it in quotes"
    return f"found {value!r}; allowed: {allowed(kind)}{advice}"


def _report(path: Path, problems: list[Problem], lines: dict[KeyPath, int], given: set[KeyPath]) -> str:
    """Every problem on a line of its own: those without a line first, then in the order of the file, the command line's last."""
    rows = []
    for problem in problems:
        above = [problem.path[:end] for end in range(len(problem.path), 0, -1)]
        line = next((lines[key] for key in above if key in lines), 0)
        key = ".".join(problem.path)
        place: float = line
        where = f"line {line}" if line else ""
        below = problem.path not in lines and any(part[: len(problem.path)] == problem.path for part in given)
        if problem.on_command_line or below or any(part in given for part in above):
            place, where = math.inf, "command line"
        rows.append((place, f"  {' '.join(filter(None, [key, where and f'({where})']))}: {problem.words}"))
    count = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
    return "\n".join([f"{path}: {count}", *(row for _, row in sorted(rows, key=lambda row: row[0]))])
