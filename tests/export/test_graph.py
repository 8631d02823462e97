"""What a file computes, holds and weighs, against the model it was made of and against ONNX's own reference."""

import json
import math
import sys
import sysconfig
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.export.made import ORIGIN, Made, Make, table_225
from tests.model.small import small_model
from tests.quant.small import calibrated, part, small_batch, small_table
from tftq.errors import QuantizationError
from tftq.export import tracing
from tftq.export.forecaster import run_file
from tftq.export.gate import EXACT, HALF, STEP
from tftq.export.graph import build_forecaster
from tftq.io import installed
from tftq.model.batch import Batch
from tftq.model.size import parameter_count
from tftq.model.tabulate import tabulate
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable
from tftq.quant.prepare import LstmStorage, prepared_copy
from tftq.serve.measure import measure
from tftq.serve.session import feeds, open_session
from tftq.spec.formats import WeightStorage
from tftq.spec.metadata import read_metadata

pytestmark = pytest.mark.xdist_group("exports")

FLOAT = ["small fp32", "large fp32"]
INT4 = ["small int4", "folded int4, lstm fp32"]
INTEGER = ["small int8", "small int8, lstm dynamic", "folded int8", "paper int8", "large int8", "large int8, lstm fp32", *INT4]


def forecast(made: Made, batch: Batch) -> np.ndarray:
    with torch.no_grad():
        return made.model(*batch.inputs).numpy()


def assert_equal_but_for_ties(one: np.ndarray, other: np.ndarray) -> None:
    """Most windows exact; on a rounding tie a last bit makes another integer, which may move a forecast by a step."""
    assert one.shape == other.shape
    windows = np.abs(one - other).max(axis=(1, 2)) / np.ptp(other)
    assert np.median(windows) <= EXACT and windows.max() <= STEP


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, as a share of the forecasts' spread."""
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.ptp(other))


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("name", FLOAT)
def test_fp32_equals_torch_at_any_batch(make: Make, name: str, batch: int) -> None:
    made = make(name)
    windows = small_batch(made.model.inputs, batch)
    assert distance(run_file(made.path, windows), forecast(made, windows)) <= 1e-5


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("optimise", [False, True], ids=["as written", "as optimised"])
@pytest.mark.parametrize("name", INTEGER)
def test_int8_equals_the_fake_quantized_model_at_any_batch(make: Make, name: str, optimise: bool, batch: int) -> None:
    made = make(name)
    windows = small_batch(made.model.inputs, 14)
    session = open_session(made.path, optimise=optimise)
    parts = [part(windows, slice(start, start + batch)) for start in range(0, 14, batch)]
    forecasts = [session.run(["forecast"], feeds(session, some.inputs))[0] for some in parts]
    assert_equal_but_for_ties(np.concatenate(forecasts), forecast(made, windows))


@pytest.mark.parametrize("name", ["small int8", "folded int8", "paper int8", *INT4])
def test_int8_means_the_same_to_onnxs_own_reference(make: Make, name: str) -> None:
    """The files are standard QDQ: what they say does not depend on the runtime."""
    made = make(name)
    windows = small_batch(made.model.inputs, 2)
    inputs = {name: x.numpy() for name, x in zip(made.model.inputs.shapes(2), windows.inputs, strict=True)}
    (result,) = ReferenceEvaluator(str(made.path)).run(None, inputs)
    assert_equal_but_for_ties(np.asarray(result), forecast(made, windows))


@pytest.mark.parametrize("name", ["paper int8", "large int8, lstm fp32", "folded int4, lstm fp32"])
def test_int8_is_at_most_a_step_apart_in_openvino(make: Make, name: str) -> None:
    """In FP32 between its integer products, where it would choose bf16 by itself; it refuses an LSTM whose weights are dequantized."""
    openvino = pytest.importorskip("openvino", reason="needs the extra openvino")
    made = make(name)
    windows = small_batch(made.model.inputs, 8)
    compiled = openvino.Core().compile_model(str(made.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = {name: x.numpy() for name, x in zip(made.model.inputs.shapes(8), windows.inputs, strict=True)}
    result, expected = compiled(inputs)[0], forecast(made, windows)
    assert np.abs(result - expected).max() <= STEP * np.ptp(expected)


@pytest.mark.parametrize("name", ["small int8", "small int8, lstm dynamic"])
def test_a_window_does_not_depend_on_its_batch_or_on_the_number_of_threads(make: Make, name: str) -> None:
    """Alone, and among 31 outliers; with one thread and with two."""
    made = make(name)
    mates = small_batch(made.model.inputs, 32, times=1000.0)
    window = small_batch(made.model.inputs, 1, seed=3)
    fed = {True: window.inputs, False: [torch.cat([one, many[1:]]) for one, many in zip(window.inputs, mates.inputs, strict=True)]}
    forecasts = []
    for threads in (1, 2):
        session = open_session(made.path, threads=threads)
        forecasts += [session.run(None, feeds(session, inputs))[0][:1] for inputs in fed.values()]
    assert all(np.abs(other - forecasts[0]).max() <= 1e-5 * np.ptp(forecasts[0]) for other in forecasts[1:])


def test_int8_really_rounds(make: Make) -> None:
    """Otherwise the comparisons above would hold for a float graph too."""
    made, plain = make("small int8"), make("small fp32")
    windows = small_batch(made.model.inputs, 7)
    with pytest.raises(AssertionError):
        assert_equal_but_for_ties(run_file(made.path, windows), run_file(plain.path, windows))


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_fp16_is_near_torch_and_stores_no_fp32_matrix(make: Make, batch: int) -> None:
    made = make("small fp16")
    windows = small_batch(made.model.inputs, batch)
    assert 1e-6 < distance(run_file(made.path, windows), forecast(made, windows)) <= HALF
    matrices = {tensor.name: tensor.data_type for tensor in made.graph.initializer if math.prod(tensor.dims) >= 64 and len(tensor.dims) > 1}
    halves = [name for name, kind in matrices.items() if kind == TensorProto.FLOAT16]
    assert len(halves) > 20
    assert not [name for name, kind in matrices.items() if kind == TensorProto.FLOAT]


@pytest.mark.parametrize("name", ["small fp32", "small int8"])
def test_an_untrained_models_quantiles_are_ordered(make: Make, name: str) -> None:
    made = make(name)
    result = run_file(made.path, small_batch(made.model.inputs, 200))
    assert result.shape == (200, 4, 3)
    assert (np.diff(result, axis=-1) >= 0).all() and (np.diff(result, axis=-1) > 0).any()


def test_batch_mates_do_not_matter(make: Make) -> None:
    made = make("small int8")
    windows = small_batch(made.model.inputs, 7)
    alone = [run_file(made.path, part(windows, slice(i, i + 1))) for i in range(7)]
    np.testing.assert_allclose(np.concatenate(alone), run_file(made.path, windows), rtol=1e-6)


def test_exporting_twice_gives_the_same_bytes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("folded int8")
    monkeypatch.setattr(tracing, "_graphs", {})  # so that it is traced twice as well
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    assert build_forecaster(made.model, made.kind, "points", ORIGIN) == made.path.read_bytes()
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


class Reader:
    """The constants of a graph, and what makes each of its tensors."""

    def __init__(self, made: Made) -> None:
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
        self.maker = {output: node for node in made.nodes for output in node.output}
        self.users = {name: node for node in made.nodes for name in node.input}

    def dequantized(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The integers behind a tensor, and their scale."""
        node = self.maker[name]
        assert node.op_type == "DequantizeLinear"
        assert not self.constants[node.input[2]].any()
        return self.constants[node.input[0]], self.constants[node.input[1]]

    def product_of(self, weight: str) -> onnx.NodeProto:
        return self.users[self.users[weight].output[0]]


@pytest.mark.parametrize("name", ["small int8", "paper int8"])
def test_the_scales_and_integers_of_the_file_are_those_of_the_model(make: Make, name: str) -> None:
    made = make(name)
    read = Reader(made)
    counts: Counter[str] = Counter()
    for path, module in made.model.named_modules():
        if isinstance(module, FakeQuantizedLinear):
            product = read.product_of(f"{path}.weight")
            assert product.op_type == ("MatMul" if module.bias is None else "Gemm")
            quantize = read.maker[read.maker[product.input[0]].input[0]]
            assert quantize.op_type == "QuantizeLinear"
            assert read.constants[quantize.input[1]] == module.input_quantizer.scale.numpy()
            assert read.constants[quantize.input[2]] == module.input_quantizer.zero_point.numpy()
            axis = 0
            expected, scale = module.weight.detach().numpy(), module.weight_quantizer.scale.numpy()
            stored, stored_scale = read.dequantized(product.input[1])
            if module.bias is None:
                stored = stored.T
            else:
                bias, bias_scale = read.dequantized(product.input[2])
                assert bias.dtype == np.int32
                np.testing.assert_array_equal(bias_scale, module.input_quantizer.scale.numpy() * scale)
                np.testing.assert_allclose(bias * bias_scale, module.bias.detach().numpy(), rtol=0, atol=0.50001 * bias_scale.max())
        elif isinstance(module, FakeQuantizedTable):
            product = read.product_of(f"{path}.integers")
            assert product.op_type == "MatMul"
            axis = 1
            expected, scale = module.values.detach().numpy(), module.weight_quantizer.scale.numpy()
            stored, stored_scale = read.dequantized(product.input[1])
        else:
            continue
        counts[type(module).__name__] += 1
        assert stored.dtype == np.int8 and stored.min() >= -127
        np.testing.assert_array_equal(stored_scale, scale)
        np.testing.assert_array_equal(stored, np.rint(expected / np.expand_dims(scale, 1 - axis)), err_msg=path)
    assert counts["FakeQuantizedLinear"] >= 18 and counts["FakeQuantizedTable"] >= 2


def test_the_lstms_integers_are_those_of_the_model_in_onnxs_order_of_gates(make: Make) -> None:
    made = make("small int8")
    read = Reader(made)
    for side in ("encoder", "decoder"):
        module = made.model.get_submodule(side)
        assert isinstance(module, FakeQuantizedLstm)
        for layer in (0, 1):
            node = read.users[f"{side}.ih_{layer}"]
            assert node.op_type == "LSTM"
            for position, kind in ((1, "ih"), (2, "hh")):
                product = read.maker[node.input[position]]
                cast, reshaped = (read.maker[name] for name in product.input)
                assert (product.op_type, cast.op_type, reshaped.op_type) == ("Mul", "Cast", "Reshape")
                assert read.constants[reshaped.input[1]].tolist() == [1, -1, 1]
                stored, scale = read.constants[cast.input[0]], read.constants[reshaped.input[0]]
                weight = getattr(module.lstm, f"weight_{kind}_l{layer}").detach().numpy()
                i, f, g, o = np.split(weight, 4)
                ours = np.concatenate([i, o, f, g])  # ONNX wants input, output, forget, cell
                assert stored.dtype == np.int8 and stored.shape == (1, *ours.shape)
                np.testing.assert_array_equal(scale, np.float32(np.abs(ours).max(1)) / np.float32(127))
                np.testing.assert_array_equal(stored[0], np.rint(ours / scale[:, None]))


def test_the_lstm_stays_in_the_storage_that_was_asked_for(make: Make) -> None:
    made = make("paper int8")
    constants = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    weights = [constants[name] for node in made.graph.node if node.op_type == "LSTM" for name in node.input[1:3]]
    assert weights == [TensorProto.FLOAT] * 4


def test_a_caller_finds_everything_in_the_metadata(make: Make) -> None:
    path = make("small int8").path
    model = onnx.load(path)
    (entry,) = model.metadata_props
    found = json.loads(entry.value)
    assert (entry.key, entry.value) == ("tftq", json.dumps(found, sort_keys=True))
    assert found.pop("versions") == {name: installed(name) for name in ("tftq", "torch", "onnx", "onnxscript")}
    assert found == {
        "recipe": "small",
        "recipe_hash": "abc",
        "data": {"kind": "table"},
        "step_ns": 60_000_000_000,
        "trained_until_ns": 7,
        "version": 1,
        "model": "tft",
        "oldest_runtime": "1.18",
        "format": "int8_ptq",
        "target": "points",
        "lookback": 12,
        "horizon": 4,
        "quantiles": [0.1, 0.5, 0.9],
        "inputs": {
            "history": [
                {"name": "price", "role": "observed", "categories": 0},
                {"name": "state", "role": "observed", "categories": 3},
                {"name": "volume", "role": "observed", "categories": 0},
                {"name": "hour", "role": "known", "categories": 0},
                {"name": "holiday", "role": "known", "categories": 2},
            ],
            "future": [{"name": "hour", "role": "known", "categories": 0}, {"name": "holiday", "role": "known", "categories": 2}],
            "static": [{"name": "sector", "role": "static", "categories": 4}, {"name": "size", "role": "static", "categories": 0}],
        },
    }
    assert [(i.name, [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim]) for i in model.graph.input] == [
        ("history", ["batch", 12, 5]),
        ("future", ["batch", 4, 2]),
        ("static", ["batch", 2]),
    ]
    (output,) = model.graph.output
    assert (output.name, [d.dim_value or d.dim_param for d in output.type.tensor_type.shape.dim]) == ("forecast", ["batch", 4, 3])
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21}


def test_without_static_columns_there_is_no_static_input(make: Make) -> None:
    model = onnx.load(make("folded int8").path)
    assert [node.name for node in model.graph.input] == ["history", "future"]
    assert "static" not in read_metadata(make("folded int8").path).inputs


@pytest.mark.parametrize("name", ["small fp32", "small fp16", "small int8"])
def test_no_path_of_the_machine_is_in_the_file(make: Make, name: str) -> None:
    content = make(name).path.read_bytes()
    paths = {str(Path(__file__).parents[2]), sysconfig.get_path("purelib"), "site-packages", sys.prefix, str(Path.home()), ".py"}
    assert not [path for path in paths if path != "/" and path.encode() in content]


@pytest.mark.parametrize(("weights", "lstm"), [("int8", "int8"), ("int4", "fp32")])  # structures that are traced for others too
def test_layers_of_equal_weights_are_layers_of_their_own(weights: WeightStorage, lstm: LstmStorage, tmp_path: Path) -> None:
    """The exporter leaves one of equal small constants; their scales differ."""
    table = tabulate(small_model("folded", static=False, lstm_layers=1))[0]
    with torch.no_grad():
        table.attention_skip.gate.weight.copy_(table.lstm_skip.gate.weight)
        table.output_skip.gate.weight.copy_(2 * table.lstm_skip.gate.weight)
        table.decoder.weight_hh_l0.copy_(table.encoder.weight_hh_l0)
        table.decoder.weight_ih_l0.copy_(2 * table.encoder.weight_ih_l0)
    model = calibrated(table, lstm, weights=weights)
    path = tmp_path / "equal.onnx"
    path.write_bytes(build_forecaster(model, "int8_ptq", "points", ORIGIN))
    windows = small_batch(model.inputs, 7)
    with torch.no_grad():
        assert_equal_but_for_ties(run_file(path, windows), model(*windows.inputs).numpy())


def test_an_uncalibrated_model_is_not_exported() -> None:
    with pytest.raises(QuantizationError, match="never observed"):
        build_forecaster(prepared_copy(small_table(), lstm="fp32"), "int8_ptq", "points")


def test_an_int8_file_is_small_beside_the_fp32_one(make: Make) -> None:
    """At 225 columns, hidden 64 and 32 knots."""
    whole = make("large fp32").path.stat().st_size
    parameters = sum(parameter.numel() for parameter in table_225().parameters())
    assert whole == pytest.approx(4 * parameters, rel=0.05)
    assert make("large int8").path.stat().st_size <= 0.3 * whole
    assert make("large int8, lstm fp32").path.stat().st_size <= 0.5 * whole


def test_an_int8_file_is_tiny_beside_the_published_form(make: Make) -> None:
    """A tenth at most; the published form's FP32 file holds four bytes a parameter at least."""
    model = table_225()
    published = 4 * parameter_count(model.inputs, replace(model.architecture, form="paper"))
    assert make("large int8").path.stat().st_size <= 0.1 * published


def test_a_sessions_memory_hardly_grows_with_the_batch(make: Make) -> None:
    """The dense rows of 32 windows at once would be 13.8 MB as bytes, and their indices, shares and buffers several times that."""
    path = make("large int8").path
    alone, together = (measure(path, threads=1, batch=batch).cost["rss_bytes"] for batch in (1, 32))
    dense = 32 * 60 * 225 * 32
    assert together - alone < 2 * dense


def test_an_int8_session_is_small_beside_the_fp32_one(make: Make) -> None:
    """Measured as the growth of a fresh process by its session."""
    resident = {
        name: measure(make(name).path, threads=1).cost["rss_bytes"] for name in ("large fp32", "large int8", "large int8, lstm fp32")
    }
    assert 0 < resident["large int8"] < 0.9 * resident["large fp32"]
    assert 0 < resident["large int8, lstm fp32"] < 0.9 * resident["large fp32"]
