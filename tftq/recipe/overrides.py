"""Apply `key=value` of the command line, typed by the option it sets; make paths absolute; remove options."""

from pathlib import Path
from typing import Any, get_args, get_origin

from tftq.errors import RecipeError
from tftq.recipe.explain import allowed, below, choices, fields, is_section, members, nearest, nullable, type_at
from tftq.recipe.yaml import InvalidYamlError, KeyPath, Problem, parse_texts, parse_value


class OverrideError(RecipeError):
    """An invalid override, with the path of its key."""

    def __init__(self, path: KeyPath, words: str) -> None:
        super().__init__(f"{'.'.join(path)}: {words}")
        self.problem = Problem(path, words, on_command_line=True)


def apply_override(schema: Any, values: dict[str, Any], override: str, given: set[KeyPath]) -> None:
    """Set one option of a recipe that is not validated yet.

    Args:
        schema: the schema of the recipe.
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
    option_type = type_at(schema, key)
    if option_type is None:
        raise _unknown(schema, key)
    if key in given:
        raise OverrideError(key, "stands twice; allowed: once")
    if against := sorted(".".join(other) for other in given if other[: len(key)] == key or key[: len(other)] == other):
        raise OverrideError(key, f"contradicts {', '.join(against)} on the command line; allowed: the one or the other")
    if text == "null" and (is_section(option_type) or not nullable(option_type)):
        take_out(values, key)
    elif is_section(option_type):
        options = ", ".join(f"{name}.{option}" for option in fields(option_type))
        raise OverrideError(key, f"found {text!r}; allowed: null, or a value for one of {options}")
    else:
        _set(values, key, _typed(text, key, option_type))
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
    """Split a dotted name into a path; below a mapping of plain values the rest is one key: patterns of parameter names contain dots."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        above = type_at(schema, tuple(parts[:end]))
        if above is not None and any(get_origin(member) is dict and not is_section(get_args(member)[1]) for member in members(above)):
            return (*parts[:end], ".".join(parts[end:]))
    return tuple(parts)


def _unknown(schema: Any, key: KeyPath) -> OverrideError:
    """Return an error with advice on the first part of `key` that the schema does not know."""
    end = next(end for end in range(1, len(key) + 1) if type_at(schema, key[:end]) is None)
    above = type_at(schema, key[: end - 1])
    if not is_section(above):
        return OverrideError(key, f"unknown key; {'.'.join(key[: end - 1])} has no options below it")
    return OverrideError(key, f"unknown key; {nearest(schema, key[:end], fields(above))}")


def _typed(text: str, key: KeyPath, option_type: Any) -> Any:
    """Parse `text` as a value of an option of type `option_type`."""
    (member, *_) = members(option_type)
    if text == "null" and nullable(option_type):
        return None
    if member is Path:
        return _absolute(Path(), text) if text else text
    if member is str or choices(member):
        return text
    parse = parse_texts if get_origin(member) is tuple and str in _elements(member) else parse_value
    try:
        return parse(text)
    except InvalidYamlError as error:
        raise OverrideError(key, f"found {text!r}; allowed: {allowed(option_type)}") from error


def _elements(option_type: Any) -> tuple[Any, ...]:
    """List the plain types of the elements of a list; a choice counts as text."""
    element = get_args(option_type)[0]
    return tuple(str if choices(member) else member for member in members(element))


def with_absolute_paths(option_type: Any, value: Any, folder: Path) -> Any:
    """Make relative paths in a value of type `option_type` absolute, from the `folder` of its file; leave the rest to validation."""
    if isinstance(value, dict):
        options = ((name, inner, below(option_type, name)) for name, inner in value.items())
        return {name: inner if option is None else with_absolute_paths(option, inner, folder) for name, inner, option in options}
    if isinstance(value, list):
        element = below(option_type, "0")
        return value if element is None else [with_absolute_paths(element, inner, folder) for inner in value]
    return _absolute(folder, value) if isinstance(value, str) and value and Path in members(option_type) else value


def _absolute(folder: Path, text: str) -> str:
    if text == "-":  # standard input, where a recipe takes it; a file of that name is ./-
        return text
    try:
        return str((folder / Path(text).expanduser()).resolve())
    except (RuntimeError, ValueError):  # the home of nobody, or a NUL character: validation and the reader say what is wrong
        return text


def without_empty_sections(option_type: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Remove empty sections (`train:` with only comments below it), so that their defaults hold.

    Args:
        option_type: the type of the section.
        values: its options as the file gives them.
    """
    known = fields(option_type)
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
    """Tell whether the option at `key` is given."""
    inner: Any = values
    for part in key:
        if not isinstance(inner, dict) or part not in inner:
            return False
        inner = inner[part]
    return True


def take_out(values: dict[str, Any], key: KeyPath) -> None:
    """Remove the option at `key`, if it is given, so that its default holds."""
    if holds(values, key):
        inner = values
        for part in key[:-1]:
            inner = inner[part]
        del inner[key[-1]]
