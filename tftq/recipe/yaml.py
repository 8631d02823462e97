"""YAML as recipes write it: `1e-4` is a number, only true and false are truth values, a key stands once, every key has its line."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml

from tftq.errors import RecipeError

KeyPath = tuple[str, ...]


class Problem(NamedTuple):
    """What is wrong with one option, and whether the command line said it rather than the file."""

    path: KeyPath
    words: str
    on_command_line: bool = False


_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_TRUTH = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _Resolver:
    """YAML 1.1's reading of plain scalars, but for exponents, truth values and dates.

    `1e-4` is a number. `on`, `off`, `yes` and `no` are text: a symbol may be called NO. No option is a date, so dates are text too.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (f"{_TAG}bool", f"{_TAG}timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _first in "-+.0123456789":
        yaml_implicit_resolvers.setdefault(_first, []).append((f"{_TAG}float", _NUMBER))
    for _first in "tTfF":
        yaml_implicit_resolvers.setdefault(_first, []).append((f"{_TAG}bool", _TRUTH))


class _Loader(_Resolver, yaml.SafeLoader):
    pass


class _Dumper(_Resolver, yaml.SafeDumper):
    pass


@dataclass
class Document:
    """A file's values, the line of every key and of every entry of a list, and every key that stands twice."""

    values: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    twice: list[tuple[KeyPath, int, int]] = field(default_factory=list)  # path, first line, second line


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Args:
        path: a UTF-8 file that holds one mapping.

    Returns:
        its values, with the lines of its keys and the keys that stand twice.

    Raises:
        RecipeError: it cannot be read, is not UTF-8, is not YAML, is empty or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    try:
        node, values = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise RecipeError(f"{path}: {place}not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the last two: a value that does not fit its explicit tag, as `!!int x`
        raise RecipeError(f"{path}: not YAML: {error}") from error
    if node is None or not isinstance(values, dict):
        found = "an empty file" if values is None else f"a {type(values).__name__}"
        raise RecipeError(f"{path}: found {found}; allowed: a mapping of options, as `name: first_run`")
    document = Document(values)
    _walk(node, (), document, set())
    return document


def _compose(text: str) -> tuple[yaml.Node | None, Any]:
    """The nodes of a text, which know their lines, and the values they stand for."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _walk(node: yaml.Node, path: KeyPath, document: Document, above: set[int]) -> None:
    """Note the line of every key and every entry of a list below `node`; `above` ends a structure that contains itself."""
    if id(node) in above:
        return
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            document.lines[(*path, str(index))] = entry.start_mark.line + 1
            _walk(entry, (*path, str(index)), document, above | {id(node)})
    if not isinstance(node, yaml.MappingNode):
        return
    here: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in here:
            document.twice.append(((*path, name), here[name], line))
        here.setdefault(name, line)
        document.lines[(*path, name)] = line
        _walk(value, (*path, name), document, above | {id(node)})


def parse_value(text: str) -> Any:
    """Read one value as a recipe would; raises `yaml.YAMLError`, or ValueError or LookupError where an explicit tag does not fit."""
    return yaml.load(text, Loader=_Loader)


def parse_texts(text: str) -> Any:
    """Read one value, every scalar as text; raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=yaml.BaseLoader)


def write_document(values: dict[str, Any]) -> str:
    """Write values so that `read_document` reads them back unchanged."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
