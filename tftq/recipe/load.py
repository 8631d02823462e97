"""From a file and the command line to a recipe; every error at once, and no option that silently does nothing."""

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
    """An option that has no effect in the recipe it stands in."""


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
    kind = _type_of_document(document.values)
    if among is not None and kind not in among:
        wanted = " or ".join(kind.of for kind in among)
        raise RecipeError(f"{path}: is the recipe of {kind.of}; allowed here: that of {wanted}; {kind.command} takes it")
    return _load(kind, path, document, overrides)


def load(kind: RecipeType[R], path: Path, overrides: Sequence[str] = ()) -> R:
    """As `load_document`, for one type alone."""
    recipe = load_document(path, overrides, among=(kind,))
    assert isinstance(recipe, kind.schema)
    return recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """As `load`, for the recipe of a forecaster."""
    return load(FORECASTER, path, overrides)


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
        apply_override(Recipe, document, override, given)
    if fixed := sorted(".".join(key) for key in given if key not in {("data", name) for name in changeable}):
        raise RecipeError(f"{', '.join(fixed)}: cannot be changed here; allowed: {', '.join(f'data.{name}' for name in changeable)}")
    recipe, problems = _validate(Recipe, document)
    if recipe is None:
        raise RecipeError("; ".join(f"{'.'.join(problem.path)}: {problem.words}" for problem in problems))
    return recipe.data


def resolved_yaml(recipe: Section) -> str:
    """A recipe as YAML, every option that has an effect written out; `load_document` reads an equal recipe from it."""
    return write_document(_effective(recipe))


def recipe_hash(recipe: Section) -> str:
    """SHA-256 (hexadecimal) of what a recipe does: of every option with an effect on it; `RecipeType.beside` have none."""
    return hashlib.sha256(json.dumps(_deciding(recipe)).encode()).hexdigest()


def deciding_yaml(recipe: Section) -> str:
    """What a recipe does, as YAML: two of the same text come to the same, and one may go on where the other stopped."""
    return write_document(_deciding(recipe))


def _type_of_document(values: Mapping[str, Any]) -> RecipeType[Any]:
    return next((kind for kind in REGISTERED if kind.key in values), FORECASTER)


def _type_of(recipe: Section) -> RecipeType[Any]:
    return next(kind for kind in REGISTERED if type(recipe) is kind.schema)


def _load(kind: RecipeType[R], path: Path, document: Document, overrides: Sequence[str]) -> R:
    problems = [Problem(key, f"stands twice, on line {first} and line {second}; allowed: once") for key, first, second in document.twice]
    values = with_absolute_paths(kind.schema, without_empty_sections(kind.schema, document.values), path.parent)
    given: set[KeyPath] = set()
    for override in overrides:
        try:
            apply_override(kind.schema, values, override, given)
        except OverrideError as error:
            problems.append(error.problem)
    recipe, refused = _validate(kind.schema, values)
    problems += refused
    if recipe is None or problems:
        raise RecipeError(_report(path, problems, document.lines, given))
    for option in kind.idle:
        if holds(values, option.key) and option.when(recipe):
            warnings.warn(f"{'.'.join(option.key)} has no effect: {option.reason}", RecipeWarning, stacklevel=4)
            take_out(values, option.key)
    return kind.schema.model_validate(values)


def _effective(recipe: Section) -> dict[str, Any]:
    values = recipe.model_dump(mode="json")
    for option in _type_of(recipe).idle:
        if holds(values, option.key) and option.when(recipe):
            take_out(values, option.key)
    return values


def _deciding(recipe: Section) -> dict[str, Any]:
    values = _effective(recipe)
    for key in _type_of(recipe).beside:
        take_out(values, key)
    return values


def _validate(schema: type[R], values: dict[str, Any]) -> tuple[R | None, list[Problem]]:
    try:
        return schema.model_validate(values), []
    except ValidationError as error:
        return None, [_explain(schema, details) for details in error.errors(include_url=False)]


def _explain(schema: type[Section], details: ErrorDetails) -> Problem:
    """One of pydantic's errors with the path and in the words of a recipe."""
    path, section, kind = place_of(schema, details["loc"])
    match details["type"]:
        case "contradiction":
            context = details["ctx"]
            return Problem((*path, *filter(None, [context["key"]])), context["message"])
        case "extra_forbidden" | "invalid_key" if kind is not None and type_at(schema, path) is not None:
            return Problem(path, f"is no option of {'.'.join((*path[:-1], 'kind'))} {kind}; allowed: {', '.join(fields(section))}")
        case "extra_forbidden" | "invalid_key":
            return Problem(path, f"unknown key; {nearest(schema, path, fields(section))}")
        case "union_tag_not_found" | "missing":
            path = (*path, "kind") if details["type"] == "union_tag_not_found" else path
            return Problem(path, f"missing; allowed: {allowed(type_at(schema, path))}")
        case "union_tag_invalid":
            path = (*path, "kind")
            return Problem(path, _found(details["input"]["kind"], type_at(schema, path)))
    return Problem(path, _found(details["input"], type_at(schema, path)))


def _found(value: Any, kind: Any) -> str:
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
