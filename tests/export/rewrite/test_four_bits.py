"""What a file stores in four bits, and that a runtime unpacks it once."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.export.made import ORIGIN, Make
from tests.quant.small import small_batch
from tftq.export.census import take_census
from tftq.export.forecaster import run_file
from tftq.export.pair import forecaster
from tftq.export.pair_graph import build_pair
from tftq.export.rewrite.four_bits import MARKER, write_four_bits
from tftq.export.rewrite.nodes import every_graph
from tftq.export.rewrite.scan import DOMAIN
from tftq.quant.layers import FakeQuantizedTable
from tftq.quant.quantizers import CurveQuantizer
from tftq.serve.session import open_session
from tftq.serve.stream import Stream

pytestmark = pytest.mark.xdist_group("exports")


def test_two_are_packed_into_a_byte_and_come_out_again() -> None:
    """Curves of two, two and three rows, seven in all, so that one run's last byte is half empty; by hand."""
    offsets = np.array([[-8], [7], [0], [-1], [1], [2], [-3]], np.int8)
    base, step = np.array([[100], [-50], [0]], np.int8), np.array([[3], [1], [16]], np.int8)
    marker = helper.make_node(MARKER, ["table", "base", "step"], ["marked"], domain=DOMAIN, counts=[2, 2, 3])
    plain = helper.make_node(MARKER, ["weight"], ["traced"], domain=DOMAIN)
    nodes = [marker, plain, helper.make_node("Identity", ["marked"], ["y"]), helper.make_node("Identity", ["traced"], ["z"])]
    constants = {"table": offsets, "base": base, "step": step, "weight": offsets}
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT8, [7, 1]) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", [], outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    write_four_bits(model)
    onnx.checker.check_model(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    assert [stored[f"table.{i}.int4"].raw_data for i in range(2)] == [bytes([0x78, 0xF0]), bytes([0x21, 0x0D])]
    assert stored["weight.int4"].raw_data == bytes([0x78, 0xF0, 0x21, 0x0D]) and "weight" not in stored and "table" not in stored
    for result in (ReferenceEvaluator(model).run(None, {}), _in_runtime(model)):
        assert [result[0].dtype, *result[0].ravel()] == [np.int8, 76, 121, -50, -51, 16, 32, -48]
        np.testing.assert_array_equal(result[1], offsets)


def test_constants_that_the_exporter_left_one_of_serve_both() -> None:
    """Two tables whose base and step are equal, and two weights that are."""
    constants = {
        "one": np.array([[1], [2]], np.int8),
        "other": np.array([[3], [-4]], np.int8),
        "base": np.array([[10]], np.int8),
        "step": np.array([[2]], np.int8),
    }
    nodes = [
        helper.make_node(MARKER, ["one", "base", "step"], ["a"], domain=DOMAIN, counts=[2]),
        helper.make_node(MARKER, ["other", "base", "step"], ["b"], domain=DOMAIN, counts=[2]),
        helper.make_node(MARKER, ["one"], ["c"], domain=DOMAIN),
        *(helper.make_node("Identity", [name], [name.upper()]) for name in "abc"),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT8, [2, 1]) for name in "ABC"]
    graph = helper.make_graph(nodes, "g", [], outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    write_four_bits(model)
    onnx.checker.check_model(model)
    assert [result.ravel().tolist() for result in _in_runtime(model)] == [[12, 14], [16, 2], [1, 2]]


def _in_runtime(model: onnx.ModelProto) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {}))


@pytest.mark.parametrize("name", ["small int4", "folded int4, lstm fp32"])
def test_the_graph_that_runs_is_that_of_eight_bits(make: Make, name: str, tmp_path: Path) -> None:
    """Its integers are the model's, unpacked where they are used, in a loop's body too, and before the first forecast."""
    made = make(name)
    unpacking = [[name for node in part.node for name in node.input if name.endswith(".int4")] for part in every_graph(made.graph)]
    assert len(unpacking) > 1 and all(unpacking)
    open_session(made.path, optimised=tmp_path / "optimised.onnx")
    parts = every_graph(onnx.load(tmp_path / "optimised.onnx").graph)
    constants = {tensor.name: tensor for part in parts for tensor in part.initializer}
    assert not [tensor for tensor in constants.values() if tensor.data_type == TensorProto.INT4]
    tables = 0
    for path, module in made.model.named_modules():
        if isinstance(module, FakeQuantizedTable):
            assert isinstance(module.weight_quantizer, CurveQuantizer)
            unpacked = numpy_helper.to_array(constants[f"{path}.integers"])
            np.testing.assert_array_equal(unpacked, module.weight_quantizer.integers(module.values).numpy())
            tables += 1
    assert tables >= 2


def test_the_census_names_both_kinds(make: Make, tmp_path: Path) -> None:
    made = make("small int4")
    census = take_census(made.path)
    stored = [tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.INT4]
    four = sum(int(np.prod(tensor.dims)) for tensor in stored)
    assert census.integer_share_outside_lstm == 1.0 and census.float_weight_products == 0
    assert 0.3 < census.int4_weight_share < 0.7 and census.int4_weight_share + census.int8_weight_share == pytest.approx(1.0)
    assert {product.type for product in census.products if product.operator in census.integer_products} == {"INT8"}
    assert four == pytest.approx(census.int4_weight_share * _weights(made.graph), rel=1e-6)


def _weights(graph: onnx.GraphProto) -> int:
    """Everything of two dimensions or more that is stored in integers: all weights, their levels, and no zero points or scales."""
    kinds = (TensorProto.INT4, TensorProto.INT8)
    return sum(int(np.prod(tensor.dims)) for tensor in graph.initializer if tensor.data_type in kinds and len(tensor.dims) >= 2)


def test_a_file_in_four_bits_is_smaller(make: Make) -> None:
    """225 columns of 32 knots, hidden 64: six tenths of the INT8 file, the LSTM's INT8 weights and the graph included."""
    assert make("large int4").path.stat().st_size <= 0.65 * make("large int8").path.stat().st_size


def test_both_halves_of_a_stream_are_in_four_bits(make: Make, tmp_path: Path) -> None:
    made = make("folded int4, lstm fp32")
    pair = build_pair(made.model, "int4_qat", "points", ORIGIN)
    for name, graph in pair.items():
        (tmp_path / name).write_bytes(graph)
        assert any(tensor.data_type == TensorProto.INT4 for tensor in onnx.load_model_from_string(graph).graph.initializer)
    windows = small_batch(made.model.inputs, 6)
    streamed = forecaster(Stream(tmp_path))(windows)
    np.testing.assert_allclose(streamed, run_file(made.path, windows), rtol=0, atol=1e-5 * np.ptp(streamed))
