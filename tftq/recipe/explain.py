"""Explain the schema in words: the type at a path, the values allowed there, the nearest known name."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel

from tftq.recipe.yaml import KeyPath

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
_LIMITS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def members(option_type: Any) -> tuple[Any, ...]:
    """List the types that `option_type` may be, without their bounds and without None."""
    if get_origin(option_type) is Annotated:
        return members(get_args(option_type)[0])
    if get_origin(option_type) in (Union, UnionType):
        return tuple(member for option in get_args(option_type) if option is not type(None) for member in members(option))
    return (option_type,)


def is_section(option_type: Any) -> bool:
    """Tell whether `option_type` is a section, with options below it."""
    return all(isinstance(member, type) and issubclass(member, BaseModel) for member in members(option_type))


def nullable(option_type: Any) -> bool:
    """Tell whether null is a value of `option_type`."""
    bare = get_args(option_type)[0] if get_origin(option_type) is Annotated else option_type
    return type(None) in get_args(bare)


def fields(option_type: Any) -> dict[str, Any]:
    """List the types of the options below `option_type`, by name; those of all its variants if it is a union of sections."""
    found: dict[str, Any] = {}
    for member in members(option_type):
        if isinstance(member, type) and issubclass(member, BaseModel):
            for name, info in member.model_fields.items():
                option: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
                found[name] = Union[found[name], option] if name in found else option  # noqa: UP007 -- the types are values here
    return found


def below(option_type: Any, part: str) -> Any:
    """Find the type of the option `part` below `option_type`, or of an element of a mapping or list; None where there is none."""
    (member, *_) = members(option_type)
    if get_origin(member) is dict:
        return get_args(member)[1]
    if get_origin(member) is tuple:
        return get_args(member)[0]
    return fields(option_type).get(part)


def type_at(schema: Any, path: KeyPath) -> Any:
    """Find the type of the option at `path` of a document that follows `schema`, or None where there is none."""
    option_type = schema
    for part in path:
        option_type = below(option_type, part)
        if option_type is None:
            return None
    return option_type


class Place(NamedTuple):
    """The place of an error: the path of its option, the section around it, and the `kind` of that section if it has several variants."""

    path: KeyPath
    section: Any
    kind: str | None


def place_of(schema: Any, location: Iterable[str | int]) -> Place:
    """Find the place of one of pydantic's errors, whose location names the variant of a section, which a document's path does not.

    Args:
        schema: the schema of the document.
        location: keys, indices and variants from the top down.
    """
    path: KeyPath = ()
    section, here, chosen, kind = None, schema, None, None
    for part in map(str, location):
        if part == "[key]":  # of a mapping: it is the key that is wrong
            continue
        if here is not None and is_section(here) and len(members(here)) > 1:
            here = next(member for member in members(here) if part in choices(fields(member)["kind"]))
            chosen = part
        else:
            section, here, kind, chosen = here, None if here is None else below(here, part), chosen, None
            path = (*path, part)
    return Place(path, section, kind)


def _paths(option_type: Any, above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, option in fields(option_type).items():
        yield (*above, name)
        if is_section(option):
            yield from _paths(option, (*above, name))


def allowed(option_type: Any) -> str:
    """Describe the values of `option_type`."""
    if is_section(option_type) and len(members(option_type)) > 1:
        return f"a mapping with kind {allowed(fields(option_type)['kind'])}, and the options of that kind"
    bounds = _bounds(option_type)
    limits = [f"{words} {getattr(bound, name)}" for bound in bounds for of, (name, words) in _LIMITS.items() if isinstance(bound, of)]
    if any(isinstance(bound, MinLen) for bound in bounds):
        limits.append("not empty")
    limits += [f"matching {bound.pattern}" for bound in bounds if hasattr(bound, "pattern")]
    words = " or ".join(dict.fromkeys(_words(member) for member in members(option_type)))
    return ", ".join([words, *limits]) + (" or null" if nullable(option_type) else "")


def _bounds(option_type: Any) -> tuple[Any, ...]:
    if get_origin(option_type) is Annotated:
        return (*get_args(option_type)[1:], *_bounds(get_args(option_type)[0]))
    if get_origin(option_type) in (Union, UnionType):
        return tuple(bound for option in get_args(option_type) for bound in _bounds(option))
    return ()


def _words(option_type: Any) -> str:
    if get_origin(option_type) is Literal:
        return ", ".join(map(str, get_args(option_type)))
    if get_origin(option_type) is tuple:
        return f"a list, each {allowed(get_args(option_type)[0])}"
    if get_origin(option_type) is dict:
        return f"a mapping from text to {allowed(get_args(option_type)[1])}"
    if is_section(option_type):
        return f"a mapping with the keys {', '.join(fields(option_type))}"
    return _PLAIN[option_type]


def choices(option_type: Any) -> tuple[str, ...]:
    """List the words of a choice; empty for any other type."""
    return tuple(word for member in members(option_type) if get_origin(member) is Literal for word in map(str, get_args(member)))


def closest(word: str, words: Iterable[str]) -> str | None:
    """Find the one of `words` that `word` resembles; None without one."""
    return next(iter(get_close_matches(word, list(words), n=1)), None)


def nearest(schema: Any, path: KeyPath, siblings: dict[str, Any]) -> str:
    """Advise on an unknown key: name the sibling it resembles, else the option of that name elsewhere, else every sibling."""
    close = closest(path[-1], siblings)
    elsewhere = [".".join(known) for known in _paths(schema) if known[-1] == path[-1] and known[:-1] != path[:-1]]
    if close is not None:
        return f"did you mean {'.'.join((*path[:-1], close))}?"
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"allowed: {', '.join(siblings)}"
