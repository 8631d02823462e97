"""What the schema knows, put into words: the type at a path, what is allowed there, the nearest known name."""

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


def members(kind: Any) -> tuple[Any, ...]:
    """The types that `kind` may be, without their bounds and without None."""
    if get_origin(kind) is Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(member for option in get_args(kind) if option is not type(None) for member in members(option))
    return (kind,)


def is_section(kind: Any) -> bool:
    """Whether options lie below `kind`."""
    return all(isinstance(member, type) and issubclass(member, BaseModel) for member in members(kind))


def nullable(kind: Any) -> bool:
    """Whether null is a value of `kind`."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return type(None) in get_args(bare)


def fields(kind: Any) -> dict[str, Any]:
    """The types of the options below `kind`, by name; those of every kind where there are several."""
    found: dict[str, Any] = {}
    for member in members(kind):
        if isinstance(member, type) and issubclass(member, BaseModel):
            for name, info in member.model_fields.items():
                option: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
                found[name] = Union[found[name], option] if name in found else option  # noqa: UP007 -- the types are values here
    return found


def below(kind: Any, part: str) -> Any:
    """The type of the option `part` below `kind`, or None where there is none; below a mapping or a list, the type of its elements."""
    (member, *_) = members(kind)
    if get_origin(member) is dict:
        return get_args(member)[1]
    if get_origin(member) is tuple:
        return get_args(member)[0]
    return fields(kind).get(part)


def type_at(schema: Any, path: KeyPath) -> Any:
    """The type of the option at `path` of a document that follows `schema`, or None where there is none."""
    kind = schema
    for part in path:
        kind = below(kind, part)
        if kind is None:
            return None
    return kind


class Place(NamedTuple):
    """Where an error is: the path of its option, the section around it, and the kind of that section where there are several."""

    path: KeyPath
    section: Any
    kind: str | None


def place_of(schema: Any, location: Iterable[str | int]) -> Place:
    """The place of one of pydantic's errors; of a section of several kinds, its location names the kind, which a document's path does not.

    Args:
        schema: that the document follows.
        location: keys, indices and kinds from the top down.
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


def _paths(kind: Any, above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, option in fields(kind).items():
        yield (*above, name)
        if is_section(option):
            yield from _paths(option, (*above, name))


def allowed(kind: Any) -> str:
    """What may stand where `kind` is asked for."""
    if is_section(kind) and len(members(kind)) > 1:
        return f"a mapping with kind {allowed(fields(kind)['kind'])}, and the options of that kind"
    bounds = _bounds(kind)
    limits = [f"{words} {getattr(bound, name)}" for bound in bounds for of, (name, words) in _LIMITS.items() if isinstance(bound, of)]
    if any(isinstance(bound, MinLen) for bound in bounds):
        limits.append("not empty")
    limits += [f"matching {bound.pattern}" for bound in bounds if hasattr(bound, "pattern")]
    words = " or ".join(dict.fromkeys(_words(member) for member in members(kind)))
    return ", ".join([words, *limits]) + (" or null" if nullable(kind) else "")


def _bounds(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return (*get_args(kind)[1:], *_bounds(get_args(kind)[0]))
    if get_origin(kind) in (Union, UnionType):
        return tuple(bound for option in get_args(kind) for bound in _bounds(option))
    return ()


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"a list, each {allowed(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"a mapping from text to {allowed(get_args(kind)[1])}"
    if is_section(kind):
        return f"a mapping with the keys {', '.join(fields(kind))}"
    return _PLAIN[kind]


def choices(kind: Any) -> tuple[str, ...]:
    """The words of a choice; empty for any other type."""
    return tuple(word for member in members(kind) if get_origin(member) is Literal for word in map(str, get_args(member)))


def closest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that `word` resembles, if any."""
    return next(iter(get_close_matches(word, list(words), n=1)), None)


def nearest(schema: Any, path: KeyPath, siblings: dict[str, Any]) -> str:
    """Advice on an unknown key: the sibling it resembles, else the option of that name elsewhere, else every sibling."""
    close = closest(path[-1], siblings)
    elsewhere = [".".join(known) for known in _paths(schema) if known[-1] == path[-1] and known[:-1] != path[:-1]]
    if close is not None:
        return f"did you mean {'.'.join((*path[:-1], close))}?"
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"allowed: {', '.join(siblings)}"
