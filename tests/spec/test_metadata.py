"""What a file says of itself: written and read alike, and refused by name where it is damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.serving import bars_model, described, origin
from tftq.errors import MetadataError
from tftq.spec.metadata import (
    METADATA_KEY,
    AgentMetadata,
    ForecasterMetadata,
    HalfMetadata,
    InputColumn,
    Metadata,
    parse_metadata,
    read_metadata,
)

PATH = Path("folder/m.onnx")
FORECASTER = ForecasterMetadata(
    model="tft",
    format="int8_qat",
    oldest_runtime="1.18",
    lookback=60,
    inputs={"history": described(("body", "hour"), "known"), "future": (InputColumn("day", "known", 7),)},
    versions={"torch": "2.13", "tftq": None},
    origin=origin(60, kind="bars", symbol="ESZ3"),
    horizon=10,
    quantiles=(0.1, 0.5, 0.9),
    target="log return",
    price="last close * exp(forecast)",
    left_out=("moon",),
    kept_float=("encoder",),
)
HALF = HalfMetadata.of(FORECASTER, weights="int8_qat", part="step", partner="forecast.onnx", pair="abc", hidden=16, states=2)
AGENT = AgentMetadata(
    model="dqn",
    format="fp32",
    oldest_runtime="1.18",
    lookback=4,
    inputs={"history": described(("body",), "observed"), "position": (InputColumn("position", "state"),)},
    versions={},
    positions=(-1, 0, 1),
)
PLAIN = replace(FORECASTER, origin=None, price=None, left_out=(), kept_float=())


@pytest.mark.parametrize("metadata", [FORECASTER, HALF, AGENT, PLAIN], ids=lambda metadata: type(metadata).__name__)
def test_what_is_written_is_read(metadata: Metadata) -> None:
    assert parse_metadata(metadata.to_json(), PATH) == metadata


def test_what_is_not_so_is_not_written() -> None:
    keys = ["format", "horizon", "inputs", "lookback", "model", "oldest_runtime", "quantiles", "target", "version", "versions"]
    assert list(json.loads(PLAIN.to_json())) == keys


def test_a_file_is_read_without_its_graph(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx", symbol="ESZ3")
    found = read_metadata(tmp_path / "m.onnx")
    assert isinstance(found, ForecasterMetadata) and found.quantile_names == ["P10", "P50", "P90"]
    assert found.origin is not None and found.origin.of_bars and found.origin.data["symbol"] == "ESZ3"
    assert len(found.names("history")) == 225 and found.names("static") == ()
    model = onnx.load(tmp_path / "m.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "m.onnx")
    assert read_metadata(tmp_path / "m.onnx") is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("[]", r"found \[\]; allowed: a JSON object"),
        ("null", r"found None; allowed: a JSON object"),
        ("{", r"no JSON that can be read \(Expecting property name"),
        ("", r"no JSON that can be read \(Expecting value"),
        (b"\xff\xfe\xff", r"no JSON that can be read \("),
        ("{" * 50_000, r"no JSON that can be read \("),
        ("[" * 50_000, r"no JSON that can be read \(maximum recursion depth"),
        ('{"a":' * 50_000, r"no JSON that can be read \(maximum recursion depth"),
        ("9" * 5_000, r"no JSON that can be read \("),
        (
            "{}",
            r"lacks version, model, format, oldest_runtime, lookback, inputs, versions, horizon, quantiles, target; export the model again",
        ),
        (" " * (1 << 25), r"found 33554432 bytes; allowed: 16777216"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, entry: str | bytes, said: str) -> None:
    with pytest.raises(MetadataError, match=rf"^folder.m\.onnx: metadata 'tftq'(:| lacks) ?{said.removeprefix('lacks ')}"):
        parse_metadata(entry, PATH)


@pytest.mark.parametrize("metadata", [FORECASTER, HALF, AGENT], ids=lambda metadata: type(metadata).__name__)
def test_every_key_that_is_missing_is_named(metadata: Metadata) -> None:
    whole = json.loads(metadata.to_json())
    optional = {"price", "left_out", "kept_float", "positions"}  # without positions it is no agent's
    for key in whole.keys() - optional:
        cut = {name: value for name, value in whole.items() if name != key}
        if key == "format" and metadata is HALF:
            continue  # of a forecaster, then
        with pytest.raises(MetadataError, match=rf"^folder.m\.onnx: metadata 'tftq' lacks {key}; export the model again with tftq run"):
            parse_metadata(json.dumps(cut), PATH)


WRONG: tuple[Any, ...] = (None, True, -1.5, 10**400, "text", [], [[]], {}, {"history": 1}, [{"name": 1}], {"kind": 1}, float("nan"))


@pytest.mark.parametrize("metadata", [FORECASTER, HALF, AGENT], ids=lambda metadata: type(metadata).__name__)
def test_a_value_of_another_type_is_refused_or_read(metadata: Metadata) -> None:
    """Never is anything but a MetadataError raised, whatever stands where; texts, lists and objects may be allowed where they stand."""
    whole = json.loads(metadata.to_json())
    refused = 0
    for key in whole:
        for value in WRONG:
            try:
                parse_metadata(json.dumps({**whole, key: value}), PATH)
            except MetadataError as error:
                refused += 1
                assert str(error).startswith(f"{PATH}: metadata 'tftq'")
    assert refused > 8 * len(whole)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": 5}, r"target: found 5; allowed: text; export the model again with tftq run"),
        ({"version": 2}, r"version: found 2; allowed: 1; a file of a higher version needs a newer tftq"),
        ({"oldest_runtime": "new"}, r"oldest_runtime: found 'new'; allowed: a release, as 1\.18"),
        ({"lookback": 0}, r"lookback: found 0; allowed: a whole number of 1 or more"),
        ({"lookback": True}, r"lookback: found True; allowed: a whole number"),
        ({"quantiles": [0.5, 0.1]}, r"quantiles: found \[0\.5, 0\.1\]; allowed: rising numbers between 0 and 1"),
        ({"step_ns": "minute"}, r"step_ns: found 'minute'; allowed: a whole number of 1 or more, below 2\^63"),
        ({"inputs": {"future": []}}, r"inputs: found an object of 1 keys; allowed: history and other inputs, each a list of columns"),
        ({"data": {"kind": "bars", "warmup": "50"}}, r"data: found an object of 2 keys; allowed: the options of a recipe's data"),
        ({"kept_float": [["a"]]}, r"kept_float: found a list of 1; allowed: a list of texts"),
        ({"price": "x" * 100}, None),
        ({"horizon": "x" * 100}, r"horizon: found 'x{79}\.\.\.; allowed"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(changes: dict[str, Any], said: str | None) -> None:
    entry = json.dumps({**json.loads(FORECASTER.to_json()), **changes})
    if said is None:
        parse_metadata(entry, PATH)
        return
    with pytest.raises(MetadataError, match=rf"^folder.m\.onnx: metadata 'tftq': {said}"):
        parse_metadata(entry, PATH)


def test_a_damaged_entry_of_a_file_is_refused(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.metadata_props[0].value = "{" * 50_000
    assert model.metadata_props[0].key == METADATA_KEY
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(MetadataError, match=r"m\.onnx: metadata 'tftq': no JSON that can be read"):
        read_metadata(tmp_path / "m.onnx")
