"""The command line's `key=value`, each typed by the option it sets, and paths made absolute."""

from pathlib import Path
from typing import Any, get_args, get_origin

from tftq.errors import RecipeError
from tftq.recipe.explain import allowed, below, choices, fields, is_section, members, nearest, nullable, type_at
from tftq.recipe.yaml import InvalidYamlError, KeyPath, Problem, parse_texts, parse_value


class OverrideError(RecipeError):
    """An override that cannot be taken, with the path of its key."""

    def __init__(self, path: KeyPath, words: str) -> None:
        super().__init__(f"{'.'.join(path)}: {words}")
        self.problem = Problem(path, words, on_command_line=True)


def apply_override(schema: Any, values: dict[str, Any], override: str, given: set[KeyPath]) -> None:
    """Set one option of a recipe that is not validated yet.

    Args:
        schema: that the recipe follows.
        values: the recipe, changed in place.
        override: `key=value`, split at the first `=`.
        given: the options that were set before; this one is added when it is set.

    Raises:
        OverrideError: it is no `key=value`, its key is unknown, set already, or above or below one that is, or its value is not of the
            option's type.
    """
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise OverrideError((), f"found {override!r}; allowed: key=value")
    key = _split(schema, name)
    kind = type_at(schema, key)
    if kind is None:
        raise _unknown(schema, key)
    if key in given:
        raise OverrideError(key, "stands twice; allowed: once")
    if against := sorted(".".join(other) for other in given if other[: len(key)] == key or key[: len(other)] == other):
        raise OverrideError(key, f"contradicts {', '.join(against)} on the command line; allowed: the one or the other")
    if text == "null" and (is_section(kind) or not nullable(kind)):
        take_out(values, key)
    elif is_section(kind):
        options = ", ".join(f"{name}.{option}" for option in fields(kind))
        raise OverrideError(key, f"found {text!r}; allowed: null, or a value for one of {options}")
    else:
        _set(values, key, _typed(text, key, kind))
    given.add(key)


def _set(values: dict[str, Any], key: KeyPath, value: Any) -> None:
    inner: Any = values
    for part in key[:-1]:
        if inner.get(part) is None:  # null is a section that says nothing, as one that is not there
            inner[part] = {}
        inner = inner[part]
        if isinstance(inner, list):
            raise OverrideError(key, "stands in a list; allowed: the whole list, as key=[...]")
        if not isinstance(inner, dict):
            return  # where the file says something else than a mapping, validation reports just that
    inner[key[-1]] = value


def _split(schema: Any, name: str) -> KeyPath:
    """The path of a dotted name; what follows a mapping of plain values is one key: patterns of parameter names hold dots themselves."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        kind = type_at(schema, tuple(parts[:end]))
        if kind is not None and any(get_origin(member) is dict and not is_section(get_args(member)[1]) for member in members(kind)):
            return (*parts[:end], ".".join(parts[end:]))
    return tuple(parts)


def _unknown(schema: Any, key: KeyPath) -> OverrideError:
    """Advice on the first part of `key` that the schema does not know."""
    end = next(end for end in range(1, len(key) + 1) if type_at(schema, key[:end]) is None)
    above = type_at(schema, key[: end - 1])
    if not is_section(above):
        return OverrideError(key, f"unknown key; {'.'.join(key[: end - 1])} has no options below it")
    return OverrideError(key, f"unknown key; {nearest(schema, key[:end], fields(above))}")


def _typed(text: str, key: KeyPath, kind: Any) -> Any:
    """The value that `text` stands for in an option of type `kind`."""
    (member, *_) = members(kind)
    if text == "null" and nullable(kind):
        return None
    if member is Path:
        return _absolute(Path(), text) if text else text
    if member is str or choices(member):
        return text
    parse = parse_texts if get_origin(member) is tuple and str in _elements(member) else parse_value
    try:
        return parse(text)
    except InvalidYamlError as error:
        raise OverrideError(key, f"found {text!r}; allowed: {allowed(kind)}") from error


def _elements(kind: Any) -> tuple[Any, ...]:
    """The plain types of a list's elements, a choice counting as text."""
    element = get_args(kind)[0]
    return tuple(str if choices(member) else member for member in members(element))


def with_absolute_paths(kind: Any, value: Any, folder: Path) -> Any:
    """A file's value of type `kind`, its relative paths made relative to the file's own `folder`; what is no path is left to validation."""
    if isinstance(value, dict):
        found = ((name, inner, below(kind, name)) for name, inner in value.items())
        return {name: inner if option is None else with_absolute_paths(option, inner, folder) for name, inner, option in found}
    if isinstance(value, list):
        element = below(kind, "0")
        return value if element is None else [with_absolute_paths(element, inner, folder) for inner in value]
    return _absolute(folder, value) if isinstance(value, str) and value and Path in members(kind) else value


def _absolute(folder: Path, text: str) -> str:
    if text == "-":  # standard input, where a recipe takes it; a file of that name is ./-
        return text
    try:
        return str((folder / Path(text).expanduser()).resolve())
    except (RuntimeError, ValueError):  # the home of nobody, or a NUL character: validation and the reader say what is wrong
        return text


def without_empty_sections(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The same without the sections that say nothing (`train:` and every line below it a comment), so that their defaults hold.

    Args:
        kind: of section that the values are of.
        values: as they lie in the file.
    """
    known = fields(kind)
    kept: dict[str, Any] = {}
    for name, value in values.items():
        option = known.get(name)
        if option is not None and is_section(option):
            if isinstance(value, dict):
                kept[name] = without_empty_sections(option, value)
            elif value is not None:
                kept[name] = value
        else:
            kept[name] = value
    return kept


def holds(values: dict[str, Any], key: KeyPath) -> bool:
    """Whether the option at `key` is written."""
    inner: Any = values
    for part in key:
        if not isinstance(inner, dict) or part not in inner:
            return False
        inner = inner[part]
    return True


def take_out(values: dict[str, Any], key: KeyPath) -> None:
    """Leave the option at `key` to its default."""
    if holds(values, key):
        inner = values
        for part in key[:-1]:
            inner = inner[part]
        del inner[key[-1]]
