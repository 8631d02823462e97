"""Load a recipe from a file and the command line; report all errors at once, and warn of options without effect."""

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tftq.errors import RecipeError
from tftq.recipe.explain import allowed, choices, closest, fields, members, nearest, place_of, type_at
from tftq.recipe.fields import Section
from tftq.recipe.forecaster import FORECASTER
from tftq.recipe.overrides import OverrideError, apply_override, holds, take_out, with_absolute_paths, without_empty_sections
from tftq.recipe.recipe_type import REGISTERED, RecipeType
from tftq.recipe.schema import BarsRecipe, Recipe, TableRecipe
from tftq.recipe.yaml import Document, KeyPath, Problem, read_document, write_document

R = TypeVar("R", bound=Section)


class RecipeWarning(UserWarning):
    """An option that has no effect in its recipe."""


def load_document(path: Path, overrides: Sequence[str] = (), *, among: Sequence[RecipeType[Any]] | None = None) -> Section:
    """Read a recipe of any registered type, then apply overrides.

    Args:
        path: a YAML file, whose top-level keys decide its type; relative paths in it are relative to its folder.
        overrides: `key=value` each, as `train.optimizer.lr=1e-3`; relative paths are relative to the working directory. `null` where
            null is no value of the key, and for a whole section, takes the key out, so that its default holds.
        among: the types that are allowed; None allows all of them.

    Returns:
        The recipe, of the schema of its type, its paths absolute. An option without effect is warned of (`RecipeWarning`) and holds its
        default.

    Raises:
        RecipeError: the file cannot be read, is of a type that is not allowed, or lists every error with its path, what was found and
            what is allowed.
    """
    document = read_document(path)
    recipe_type = _type_of_document(document.values)
    if among is not None and recipe_type not in among:
        wanted = " or ".join(recipe_type.of for recipe_type in among)
        raise RecipeError(f"{path}: is the recipe of {recipe_type.of}; allowed here: that of {wanted}; {recipe_type.command} takes it")
    return _load(recipe_type, path, document, overrides)


def load(recipe_type: RecipeType[R], path: Path, overrides: Sequence[str] = ()) -> R:
    """Load a recipe of one type; see `load_document`."""
    recipe = load_document(path, overrides, among=(recipe_type,))
    assert isinstance(recipe, recipe_type.schema)
    return recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load the recipe of a forecaster; see `load_document`."""
    return load(FORECASTER, path, overrides)


def data_recipe(values: Mapping[str, Any], overrides: Sequence[str], changeable: Sequence[str]) -> BarsRecipe | TableRecipe:
    """Apply overrides to the `data` part of a resolved recipe.

    Args:
        values: the part, with absolute paths.
        overrides: `key=value` each, as `data.symbol=ESH4`.
        changeable: the options below `data` that overrides may set.

    Raises:
        RecipeError: another option than those, or a value that is not allowed.
    """
    document: dict[str, Any] = {"name": "data", "data": dict(values)}
    given: set[KeyPath] = set()
    for override in overrides:
        apply_override(Recipe, document, override, given)
    if fixed := sorted(".".join(key) for key in given if key not in {("data", name) for name in changeable}):
        raise RecipeError(f"{', '.join(fixed)}: cannot be changed here; allowed: {', '.join(f'data.{name}' for name in changeable)}")
    recipe, problems = _validate(Recipe, document)
    if recipe is None:
        raise RecipeError("; ".join(f"{'.'.join(problem.path)}: {problem.words}" for problem in problems))
    return recipe.data


def resolved_yaml(recipe: Section) -> str:
    """Write a recipe as YAML with every option that has an effect; `load_document` reads an equal recipe from it."""
    return write_document(_effective(recipe))


def recipe_hash(recipe: Section) -> str:
    """Compute the SHA-256 (hexadecimal) of the options that change what a run computes: all but `RecipeType.not_hashed`."""
    return hashlib.sha256(json.dumps(_deciding(recipe)).encode()).hexdigest()


def deciding_yaml(recipe: Section) -> str:
    """Write the options that change what a run computes as YAML; a run may resume another of the same text."""
    return write_document(_deciding(recipe))


def _type_of_document(values: Mapping[str, Any]) -> RecipeType[Any]:
    return next((recipe_type for recipe_type in REGISTERED if recipe_type.key in values), FORECASTER)


def _type_of(recipe: Section) -> RecipeType[Any]:
    return next(recipe_type for recipe_type in REGISTERED if type(recipe) is recipe_type.schema)


def _load(recipe_type: RecipeType[R], path: Path, document: Document, overrides: Sequence[str]) -> R:
    problems = [Problem(key, f"stands twice, on line {first} and line {second}; allowed: once") for key, first, second in document.twice]
    values = with_absolute_paths(recipe_type.schema, without_empty_sections(recipe_type.schema, document.values), path.parent)
    given: set[KeyPath] = set()
    for override in overrides:
        try:
            apply_override(recipe_type.schema, values, override, given)
        except OverrideError as error:
            problems.append(error.problem)
    recipe, refused = _validate(recipe_type.schema, values)
    problems += refused
    if recipe is None or problems:
        raise RecipeError(_report(path, problems, document.lines, given))
    for option in recipe_type.unused:
        if holds(values, option.key) and option.when(recipe):
            warnings.warn(f"{'.'.join(option.key)} has no effect: {option.reason}", RecipeWarning, stacklevel=4)
            take_out(values, option.key)
    return recipe_type.schema.model_validate(values)


def _effective(recipe: Section) -> dict[str, Any]:
    values = recipe.model_dump(mode="json")
    for option in _type_of(recipe).unused:
        if holds(values, option.key) and option.when(recipe):
            take_out(values, option.key)
    return values


def _deciding(recipe: Section) -> dict[str, Any]:
    values = _effective(recipe)
    for key in _type_of(recipe).not_hashed:
        take_out(values, key)
    return values


def _validate(schema: type[R], values: dict[str, Any]) -> tuple[R | None, list[Problem]]:
    try:
        return schema.model_validate(values), []
    except ValidationError as error:
        return None, [_explain(schema, details) for details in error.errors(include_url=False)]


def _explain(schema: type[Section], details: ErrorDetails) -> Problem:
    """Translate one of pydantic's errors into the path and the words of a recipe."""
    path, section, variant = place_of(schema, details["loc"])
    match details["type"]:
        case "contradiction":
            context = details["ctx"]
            return Problem((*path, *filter(None, [context["key"]])), context["message"])
        case "extra_forbidden" | "invalid_key" if variant is not None and type_at(schema, path) is not None:
            return Problem(path, f"is no option of {'.'.join((*path[:-1], 'kind'))} {variant}; allowed: {', '.join(fields(section))}")
        case "extra_forbidden" | "invalid_key":
            return Problem(path, f"unknown key; {nearest(schema, path, fields(section))}")
        case "union_tag_not_found" | "missing":
            path = (*path, "kind") if details["type"] == "union_tag_not_found" else path
            return Problem(path, f"missing; allowed: {allowed(type_at(schema, path))}")
        case "union_tag_invalid":
            path = (*path, "kind")
            return Problem(path, _found(details["input"]["kind"], type_at(schema, path)))
    return Problem(path, _found(details["input"], type_at(schema, path)))


def _found(value: Any, option_type: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    advice = ""
    if isinstance(value, str) and (word := closest(value, choices(option_type))) is not None:
        advice = f"; did you mean {word}?"
    elif str in members(option_type) and isinstance(value, bool | int | float):
        advice = "; put it in quotes"
    return f"found {value!r}; allowed: {allowed(option_type)}{advice}"


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
