"""Export of a streaming pair: the inputs and outputs of its halves, its metadata, its checks and its publication."""

import json
from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from tests.export.made import ORIGIN, Make
from tests.export.pairs import HALVES, LSTMS, MakePair, Pair
from tests.quant.small import SmallWindows, small_batch, small_table
from tftq.errors import GateError
from tftq.export import pair as stream_export
from tftq.export.census import layer_of
from tftq.export.pair import export_pair
from tftq.export.pair_graph import ForecastNetwork, StepNetwork
from tftq.export.publish import publish
from tftq.io import sha256
from tftq.serve.proof import proven_bytes
from tftq.spec.formats import FORECAST_FILE, STEP_FILE
from tftq.spec.metadata import ForecasterMetadata, read_metadata

pytestmark = pytest.mark.xdist_group("exports")


@pytest.mark.parametrize("name", LSTMS)
def test_what_the_halves_take_and_give(make: Make, make_pair: MakePair, name: str) -> None:
    """An LSTM that rounds over a whole window has no step of its own: it stays with the forecast."""
    model = make(name).model
    lookback, horizon, hidden, columns = model.inputs.lookback, model.inputs.horizon, 16, len(model.inputs.history)
    step = {"history": [columns], "states": [4, lookback - 1, hidden], "static": [2]}
    steps = {"selected": [hidden], "new_states": [4, lookback, hidden], "context": [4, hidden]}
    known = len(model.inputs.future)
    ahead = {
        "selected": [lookback, hidden],
        "future": [horizon, known],
        "encoded": [lookback, hidden],
        "state": [4, hidden],
        "context": [4, hidden],
    }
    if "dynamic" in name:
        del step["states"], steps["new_states"], ahead["encoded"], ahead["state"]
    found = []
    for content in make_pair(name).values():
        graph = onnx.load_model_from_string(content).graph
        for values in (graph.input, graph.output):
            found.append({value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]] for value in values})
    assert found == [step, steps, ahead, {"forecast": [horizon, 3]}]


def test_both_files_say_what_they_are(bars_pair: Pair) -> None:
    notes = {name: read_metadata(bars_pair.folder / name) for name in HALVES}
    one_piece = read_metadata(bars_pair.folder / "int8_ptq.onnx")
    for name, part, partner in ((STEP_FILE, "step", FORECAST_FILE), (FORECAST_FILE, "forecast", STEP_FILE)):
        found = notes[name]
        assert (found.format, found.part, found.partner, found.weights) == ("stream", part, partner, "int8_ptq")
        assert (found.hidden, found.target, found.origin.recipe_hash) == (16, "log return", "abc")
        common = {key.name: getattr(found, key.name) for key in fields(one_piece)}
        assert ForecasterMetadata(**{**common, "format": "int8_ptq"}) == one_piece  # columns, window, quantiles, versions
    assert notes[STEP_FILE].pair == notes[FORECAST_FILE].pair


def test_the_pair_is_proven_and_published_as_one(bars_pair: Pair, tmp_path: Path) -> None:
    exported = bars_pair.exported
    assert [path.name for path in exported.files] == ["step.onnx", "forecast.onnx", "stream.export.json"]
    proof = json.loads(exported.files[-1].read_text())
    assert proven_bytes(exported.files[-1], [sha256(path) for path in exported.files[:2]]) == exported.summary()["rss_bytes"]
    checks = {check["name"]: check for check in proof["checks"]}
    assert all(check["passed"] for check in proof["checks"])
    assert checks["distance from the one-piece model, bar by bar, nearest window"]["allowed"] == "<= 1e-05"
    assert checks["products of float weights left"]["measured"] == 0

    one_piece = onnx.load(bars_pair.folder / "int8_ptq.onnx").graph
    stored = {tensor.name for tensor in one_piece.initializer if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2}
    assert sum(proof["census"]["integer_products"].values()) >= len(stored)  # every table and linear weight, in one half or the other
    assert proof["census"]["integer_share_outside_lstm"] == 1.0 == proof["census"]["int8_weight_share"]

    summary = exported.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["file_bytes"] == exported.path.stat().st_size + exported.partner.stat().st_size
    assert summary["partner"] == str(exported.partner)
    assert exported.quality.windows == len(bars_pair.data.validation)

    publish({"stream": exported}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forecast.onnx", "step.onnx", "stream.export.json"]


def test_a_layer_has_the_same_name_in_either_half() -> None:
    """By which the census of a pair knows those that were to stay in floating point."""
    model = small_table()
    for half in (StepNetwork(model), ForecastNetwork(model)):
        names = [name for name, _ in half.named_parameters()]
        assert [layer_of(name) for name in names] == [name.rpartition(".")[0] for name, _ in model.named_parameters()]


def test_a_pair_of_a_model_with_static_columns_is_proven(make: Make, tmp_path: Path) -> None:
    made = make("small fp32")
    path = tmp_path / "fp32.onnx"
    path.write_bytes(made.path.read_bytes())
    windows = SmallWindows(small_batch(made.model.inputs, 20))  # each of another series
    exported = export_pair(made.model, "fp32", path, windows, windows, batch_size=8, origin=ORIGIN)  # type: ignore[arg-type]
    assert exported.quality.windows == 20 and exported.quality == exported.test
    assert all(check.passed for check in exported.proof.checks)


def test_a_pair_of_another_model_leaves_no_file(static_pair: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("small fp32")
    monkeypatch.setattr(stream_export, "build_pair", lambda *_: {name: (static_pair / name).read_bytes() for name in HALVES})
    other = onnx.load(made.path)
    largest = max(
        (tensor for tensor in other.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT), key=lambda t: len(t.raw_data)
    )
    largest.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(largest), largest.name))
    onnx.save(other, tmp_path / "fp32.onnx")
    windows = SmallWindows(small_batch(made.model.inputs, 20))
    with pytest.raises(GateError, match=r"^the streaming pair of fp32 did not pass the gate(?s:.)*FAILED  distance from the one-piece"):
        export_pair(made.model, "fp32", tmp_path / "fp32.onnx", windows, None, batch_size=8, origin=ORIGIN)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["fp32.onnx"]
