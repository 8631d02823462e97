"""Recipe text: YAML 1.2 without tags, anchors and aliases, with the line of every key."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, Event, MappingStartEvent, ScalarEvent, SequenceStartEvent
from ruamel.yaml.nodes import ScalarNode

from tftq.errors import RecipeError

KeyPath = tuple[str, ...]

LARGEST = 100_000  # characters of a document; a recipe has a few thousand
DEEPEST = 50  # levels of nesting; the schema has five
_SMALL_FLOAT = re.compile(r"[-+]?\.[0-9]+([eE][-+]?[0-9]+)?")  # YAML 1.2's core schema, which the library's resolver leaves as text
LONGEST_INTEGER = 100  # characters; Python refuses thousands, and no option is as large as this
_INTEGER_BASES = {"0x": 16, "0o": 8, "0b": 2}


class Problem(NamedTuple):
    """An error of one option, and whether it is from the command line rather than the file."""

    path: KeyPath
    words: str
    on_command_line: bool = False


@dataclass
class Document:
    """Values of a file, the line of every key and of every entry of a list, and every duplicate key."""

    values: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    twice: list[tuple[KeyPath, int, int]] = field(default_factory=list)  # path, first line, second line


class InvalidYamlError(ValueError):
    """Text that is not the YAML of a recipe: what is wrong, and where."""


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Args:
        path: a UTF-8 file that holds one mapping.

    Returns:
        Its values, with the lines of its keys and its duplicate keys.

    Raises:
        RecipeError: it cannot be read, is not UTF-8, is not YAML, is empty or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    document = Document({})
    try:
        values = _Builder(text, _typed, document).build()
    except InvalidYamlError as error:
        raise RecipeError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        found = "an empty file" if values is None else f"a {type(values).__name__}"
        raise RecipeError(f"{path}: found {found}; allowed: a mapping of options, as `name: first_run`")
    document.values = values
    return document


def parse_value(text: str) -> Any:
    """Read one value as a recipe would; raises `InvalidYamlError`."""
    return _Builder(text, _typed).build()


def parse_texts(text: str) -> Any:
    """Read one value, every scalar as text; raises `InvalidYamlError`."""
    return _Builder(text, lambda event: event.value).build()


def write_document(values: dict[str, Any]) -> str:
    """Write values so that `read_document` reads them back unchanged."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width, writer.allow_unicode = False, 120, True
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # the library declares None
    writer.representer.ignore_aliases = lambda data: True
    text = StringIO()
    writer.dump(values, text)
    return text.getvalue()


def _typed(event: ScalarEvent) -> Any:
    """The value of a scalar under YAML 1.2's core schema. Dates are text: no option is one."""
    text = event.value
    tag = str(_resolve(ScalarNode, text, event.implicit)).rpartition(":")[2]
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
        digits = digits.replace("_", "")
        base = _INTEGER_BASES.get(digits[:2].lower(), 10)
        if len(digits) > LONGEST_INTEGER:
            _refuse(event, f"a whole number of {len(digits):,} characters; allowed: at most {LONGEST_INTEGER}")
        if base != 10 and not digits[2:]:
            return text
        return int(sign + (digits if base == 10 else digits[2:]), base)
    if tag == "float" or (event.implicit[0] and _SMALL_FLOAT.fullmatch(text)):
        return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    return text


_resolve = YAML(typ="safe", pure=True).resolver.resolve


class _Builder:
    """Builds the values of a text from the parser's events, so that nothing is expanded and depth and size are bounded.

    Args:
        text: one document.
        scalar: from the event of a scalar to its value.
        document: takes the lines of keys and entries, and duplicate keys.
    """

    def __init__(self, text: str, scalar: Callable[[ScalarEvent], Any], document: Document | None = None) -> None:
        if len(text) > LARGEST:
            raise InvalidYamlError(f"{len(text):,} characters; allowed: at most {LARGEST:,}")
        self._events: Iterator[Event] = iter(YAML(typ="safe", pure=True).parse(StringIO(text)))
        self._scalar = scalar
        self._document = document or Document({})

    def build(self) -> Any:
        """Return the values of the document; None where it is empty."""
        try:
            content = [event for event in self._bounded() if not type(event).__name__.startswith(("Stream", "Document"))]
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
            raise InvalidYamlError(f"{place}not YAML: {error.problem or error.context}") from error
        except InvalidYamlError:
            raise
        except (YAMLError, OverflowError, ValueError) as error:  # the latter two of an escaped character that there is none of
            raise InvalidYamlError(f"not YAML: {error}") from error
        self._events = iter(content)
        return self._value(next(self._events), ()) if content else None

    def _bounded(self) -> Iterator[Event]:
        """The events of one document without tags, anchors and aliases, and not too deeply nested."""
        depth = documents = 0
        for event in self._events:
            name = type(event).__name__
            depth += name.endswith(("MappingStartEvent", "SequenceStartEvent")) - name.endswith(("MappingEndEvent", "SequenceEndEvent"))
            documents += name == "DocumentStartEvent"
            if documents > 1:
                _refuse(event, "not YAML: but found another document")
            if depth > DEEPEST:
                _refuse(event, f"nested deeper than {DEEPEST} levels")
            if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
                _refuse(event, "anchors and aliases are not supported; write the value out")
            if (tag := getattr(event, "tag", None)) is not None:
                _refuse(event, f"tags such as {tag} are not supported; write the plain value")
            yield event

    def _value(self, event: Event, path: KeyPath) -> Any:
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if isinstance(event, SequenceStartEvent):
            return self._list(path)
        assert isinstance(event, MappingStartEvent)
        return self._mapping(path)

    def _list(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not type(event := next(self._events)).__name__.endswith("EndEvent"):
            here = (*path, str(len(values)))
            self._document.lines[here] = event.start_mark.line + 1
            values.append(self._value(event, here))
        return values

    def _mapping(self, path: KeyPath) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        first: dict[str, int] = {}
        while not type(event := next(self._events)).__name__.endswith("EndEvent"):
            if not isinstance(event, ScalarEvent):
                _refuse(event, "a list or mapping is no key; allowed: text")
            here, line = (*path, event.value), event.start_mark.line + 1
            if event.value in first:
                self._document.twice.append((here, first[event.value], line))
            first.setdefault(event.value, line)
            self._document.lines[here] = line
            values[self._scalar(event)] = self._value(next(self._events), here)
        return values


def _refuse(event: Event, words: str) -> NoReturn:
    mark = event.start_mark
    raise InvalidYamlError(f"line {mark.line + 1}, column {mark.column + 1}: {words}")
