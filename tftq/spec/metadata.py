"""The metadata of an exported file: one validated model, written by the exporter and read by everything that serves."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_origin, get_type_hints

from tftq.errors import MetadataError
from tftq.spec.formats import STREAM
from tftq.spec.onnx_file import read_entry
from tftq.spec.quantiles import quantile_name

METADATA_KEY = "tftq"  # the entry of an ONNX file's metadata
VERSION = 1  # of the entry's content
_RELEASE = re.compile(r"\d{1,4}\.\d{1,4}")
MOST_SHOWN = 80  # characters of a value in a message
MOST_BYTES = 16 << 20  # of the entry: that of 225 columns has 20,000


class InputColumn(NamedTuple):
    """One column of an input.

    Attributes:
        name: its name.
        role: static, observed, known, or state where it is the position that an agent holds.
        categories: 0 for a real number; else the number of codes.
    """

    name: str
    role: str
    categories: int = 0


Inputs = Mapping[str, tuple[InputColumn, ...]]  # the graph's inputs by name


class Rule(NamedTuple):
    """The rule that a value must meet.

    Attributes:
        allowed: in words, for the message.
        convert: from the JSON value to the field's; raises ValueError, TypeError, KeyError or OverflowError where it is not allowed.
        write: back to a JSON value.
    """

    allowed: str
    convert: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def _require(condition: bool, value: Any) -> Any:
    if not condition:
        raise ValueError
    return value


def _text(value: Any) -> str:
    return str(_require(isinstance(value, str), value))


def _whole(value: Any, least: int, below: int = 2**31) -> int:
    return int(_require(type(value) is int and least <= value < below, value))


def _number(value: Any) -> Any:
    return _require(type(value) in (int, float) and math.isfinite(value), value)


def _levels(value: Any) -> tuple[float, ...]:
    levels = tuple(float(_number(level)) for level in _list(value))
    rising = all(low < high for low, high in zip((0.0, *levels), (*levels, 1.0), strict=True))
    return tuple(_require(bool(levels) and rising, levels))


def _list(value: Any) -> list[Any]:
    return list(_require(isinstance(value, list), value))


def _object(value: Any) -> dict[str, Any]:
    return dict(_require(isinstance(value, dict), value))


def _inputs(value: Any) -> Inputs:
    found = {
        name: tuple(InputColumn(_text(column["name"]), _text(column["role"]), _whole(column["categories"], 0)) for column in _list(columns))
        for name, columns in _object(value).items()
    }
    return dict(_require("history" in found, found))


def _write_inputs(inputs: Inputs) -> dict[str, list[dict[str, Any]]]:
    return {name: [column._asdict() for column in columns] for name, columns in inputs.items()}


def _data(value: Any) -> dict[str, Any]:
    data = _object(value)
    _text(data["kind"])
    _whole(data.get("warmup", 0), 0)
    for name in ("time_zone", "symbol"):
        _require(data.get(name) is None or isinstance(data[name], str), data)
    return data


def _versions(value: Any) -> dict[str, str | None]:
    return {name: None if version is None else _text(version) for name, version in _object(value).items()}


TEXT = Rule("text", _text)
RELEASE = Rule("a release, as 1.18", lambda value: _require(_RELEASE.fullmatch(value) is not None, value))
TEXTS = Rule("a list of texts", lambda value: tuple(map(_text, _list(value))), list)
COUNT = Rule("a whole number of 0 or more, below 2^31", lambda value: _whole(value, 0))
SIZE = Rule("a whole number of 1 or more, below 2^31", lambda value: _whole(value, 1))
STEP = Rule("a whole number of 1 or more, below 2^63", lambda value: _whole(value, 1, 2**63))
LEVELS = Rule("rising numbers between 0 and 1", _levels, list)
NUMBERS = Rule("a list of numbers", lambda value: tuple(map(_number, _list(value))), list)
INPUTS = Rule("history and other inputs, each a list of columns with name, role and categories", _inputs, _write_inputs)
DATA = Rule("the options of a recipe's data: kind, a text, and warmup, time_zone and symbol where there are any", _data)
THIS_VERSION = Rule(
    f"{VERSION}; a file of a higher version needs a newer tftq", lambda value: _require(type(value) is int and value == VERSION, value)
)
VERSIONS = Rule("an object of package names, each with a text or null", _versions)
TIME = Rule("a whole number of 64 bits", lambda value: _whole(value, -(2**63), 2**63))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a file comes from, and how its columns are made of a file of data.

    Attributes:
        recipe: the name of the recipe of the run that made it.
        recipe_hash: of every option with an effect, SHA-256, hexadecimal.
        data: the options of the recipe's `data` that have a use where the file is; lookback and horizon stand beside the inputs.
        step_ns: between rows, nanoseconds.
        trained_until_ns: the time of the last row that it was trained on, nanoseconds UTC.
    """

    recipe: Annotated[str, TEXT]
    recipe_hash: Annotated[str, TEXT]
    data: Annotated[Mapping[str, Any], DATA]
    step_ns: Annotated[int, STEP]
    trained_until_ns: Annotated[int, TIME]

    @property
    def of_bars(self) -> bool:
        """Return whether it was trained on bars, not on a table."""
        return bool(self.data["kind"] == "bars")


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata of every exported file.

    Attributes:
        version: of the metadata.
        model: its type: tft, mamba2, dqn or ppo.
        format: see `tftq.spec.formats.FORMATS`; `stream` for a half of a pair.
        oldest_runtime: the oldest release of ONNX Runtime that can load the file, such as 1.18.
        lookback: rows of the history input.
        inputs: the columns of each input, in order.
        versions: of the packages that made the file; None where one is not installed, as tftq itself in a checkout.
        origin: None where no run made the file.
    """

    version: Annotated[int, THIS_VERSION] = VERSION
    model: Annotated[str, TEXT]
    format: Annotated[str, TEXT]
    oldest_runtime: Annotated[str, RELEASE]
    lookback: Annotated[int, SIZE]
    inputs: Annotated[Inputs, INPUTS]
    versions: Annotated[Mapping[str, str | None], VERSIONS]
    origin: Origin | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], path: Path) -> Self:
        """Validate the metadata in a file.

        Args:
            values: the JSON object.
            path: the file, for the message.

        Raises:
            MetadataError: keys are missing, or a value is not allowed.
        """
        origin = Origin(**_converted(Origin, values, path)) if any(key.name in values for key in fields(Origin)) else None
        return cls(**_converted(cls, values, path), origin=origin)

    def to_json(self) -> str:
        """Return the text that the file holds; the same text for the same metadata."""
        return json.dumps(_written(self) | ({} if self.origin is None else _written(self.origin)), sort_keys=True)

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names of an input's columns, in order; none where there is no such input."""
        return tuple(column.name for column in self.inputs.get(name, ()))


@dataclass(frozen=True, kw_only=True)
class ForecasterMetadata(Metadata):
    """The metadata of a forecaster.

    Attributes:
        horizon: steps that are forecast.
        quantiles: their levels, rising.
        target: the unit of the forecasts.
        price: how a price follows from a forecast; None where the data has none.
        left_out: columns of the data that pruning dropped.
        kept_float: layers that stayed in floating point where the others are quantized.
    """

    horizon: Annotated[int, SIZE]
    quantiles: Annotated[tuple[float, ...], LEVELS]
    target: Annotated[str, TEXT]
    price: Annotated[str | None, TEXT] = None
    left_out: Annotated[tuple[str, ...], TEXTS] = ()
    kept_float: Annotated[tuple[str, ...], TEXTS] = ()

    @property
    def data_options(self) -> dict[str, Any]:
        """Return the options of the recipe's `data` by which the columns are made, of a file that a run made."""
        assert self.origin is not None
        return {**self.origin.data, "lookback": self.lookback, "horizon": self.horizon}

    @property
    def quantile_names(self) -> list[str]:
        """Return the names of the quantiles as columns of forecasts: P10, P50, P90."""
        return [quantile_name(level) for level in self.quantiles]


@dataclass(frozen=True, kw_only=True)
class HalfMetadata(ForecasterMetadata):
    """The metadata of a half of a streaming pair.

    Attributes:
        weights: the format of the one-piece model with the same weights.
        part: step or forecast.
        partner: the name of the other half's file.
        pair: the same text in both halves of a pair.
        hidden: numbers that are kept of each bar.
        states: hidden and cell states of the encoder's layers; 0 where the encoder is in the forecast's half.
    """

    weights: Annotated[str, TEXT]
    part: Annotated[str, TEXT]
    partner: Annotated[str, TEXT]
    pair: Annotated[str, TEXT]
    hidden: Annotated[int, SIZE]
    states: Annotated[int, COUNT]

    @classmethod
    def of(cls, whole: ForecasterMetadata, **more: Any) -> "HalfMetadata":
        """Add the entries of a half to the metadata of the model in one piece.

        Args:
            whole: of the model in one piece.
            more: the fields of a half.
        """
        return cls(**{**{key.name: getattr(whole, key.name) for key in fields(whole)}, "format": STREAM, **more})


@dataclass(frozen=True, kw_only=True)
class AgentMetadata(Metadata):
    """The metadata of an agent.

    Attributes:
        positions: that its scores are of, in order.
    """

    positions: Annotated[tuple[float, ...], NUMBERS]


def read_metadata(path: Path | str) -> ForecasterMetadata | AgentMetadata | None:
    """Read the metadata of an exported file, without loading its graph.

    Args:
        path: an ONNX file.

    Returns:
        `HalfMetadata` of a half of a streaming pair, else `ForecasterMetadata` or `AgentMetadata`; None where another tool made the file.

    Raises:
        MetadataError: no ONNX file, or a damaged one; keys are missing, or a value is not allowed.
    """
    path = Path(path)
    entry = read_entry(path, METADATA_KEY)
    return None if entry is None else parse_metadata(entry, path)


def parse_metadata(entry: bytes | str, path: Path) -> ForecasterMetadata | AgentMetadata:
    """Parse the text of the entry in a file; see `read_metadata`.

    Args:
        entry: the value of `METADATA_KEY`.
        path: the file, for the message.
    """
    if len(entry) > MOST_BYTES:
        raise MetadataError(f"{path}: metadata {METADATA_KEY!r}: found {len(entry)} bytes; allowed: {MOST_BYTES}")
    try:
        values = json.loads(entry)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{path}: metadata {METADATA_KEY!r}: no JSON that can be read ({error}); {_ADVICE}") from error
    if not isinstance(values, dict):
        raise MetadataError(f"{path}: metadata {METADATA_KEY!r}: found {_shown(values)}; allowed: a JSON object; {_ADVICE}")
    if "positions" in values:
        return AgentMetadata.from_json(values, path)
    return (HalfMetadata if values.get("format") == STREAM else ForecasterMetadata).from_json(values, path)


_ADVICE = "export the model again with tftq run"


def _converted(cls: type[Any], values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Validate the values of a class's keys, by name."""
    rules = _rules(cls)
    required = [key.name for key in fields(cls) if key.name in rules and (key.default is MISSING or key.name == "version")]
    if missing := [name for name in required if name not in values]:
        raise MetadataError(f"{path}: metadata {METADATA_KEY!r} lacks {', '.join(missing)}; {_ADVICE}")
    found = {}
    for name, rule in ((name, rule) for name, rule in rules.items() if name in values):
        try:
            found[name] = rule.convert(values[name])
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            where = f"{path}: metadata {METADATA_KEY!r}: {name}"
            raise MetadataError(f"{where}: found {_shown(values[name])}; allowed: {rule.allowed}; {_ADVICE}") from error
    return found


def _written(part: Any) -> dict[str, Any]:
    """Return the keys of a dataclass's JSON, without those of a default value but with the version."""
    defaults = {key.name: key.default for key in fields(part)}
    values = {name: (getattr(part, name), rule) for name, rule in _rules(type(part)).items()}
    return {name: rule.write(value) for name, (value, rule) in values.items() if name == "version" or value != defaults[name]}


def _rules(cls: type[Any]) -> dict[str, Rule]:
    """List the rule of each key of a class."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def _shown(value: Any) -> str:
    """Format a value of JSON for a message, however large or deep it is."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
