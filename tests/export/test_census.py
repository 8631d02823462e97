"""Which products run in integers, counted on graphs of one product each and on the real exports."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.export.made import Make
from tests.export.stub import write_stub
from tests.quant.small import small_table
from tftq.export import census as census_module
from tftq.export.census import Census, Product, StoredWeight, integer_shares, kept_weights, stored_weights, take_census
from tftq.export.graph import describe
from tftq.serve.session import open_session
from tftq.spec.metadata import read_metadata

pytestmark = pytest.mark.xdist_group("exports")

node = helper.make_node
QUANTIZED_INPUT = [
    node("QuantizeLinear", ["x", "input_scale", "input_zero"], ["integers"]),
    node("DequantizeLinear", ["integers", "input_scale", "input_zero"], ["input"]),
]
INT8_WEIGHT = [node("DequantizeLinear", ["int8", "scale", "zero"], ["weight"], axis=1)]
INT32_BIAS = [node("DequantizeLinear", ["int32", "bias_scale"], ["bias"], axis=0)]


def count(folder: Path, nodes: Sequence[NodeProto]) -> Census:
    """The census of a graph from x [batch, 32] to y [batch, 8]."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "int8": rng.integers(-127, 127, (32, 8), dtype=np.int8),
        "scale": np.full(8, 0.01, np.float32),
        "zero": np.zeros(8, np.int8),
        "float": rng.normal(size=(32, 8)).astype(np.float32),
        "small": np.ones((8, 1), np.float32),
        "float_bias": np.ones(8, np.float32),
        "int32": np.ones(8, np.int32),
        "bias_scale": np.full(8, np.float32(0.02) * np.float32(0.01)),
        "input_scale": np.array(0.02, np.float32),
        "input_zero": np.array(100, np.uint8),
    }
    used = {name for made in nodes for name in made.input}
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    path = folder / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return take_census(path)


@pytest.mark.parametrize(
    ("nodes", "fused"),
    [
        ([*QUANTIZED_INPUT, *INT8_WEIGHT, node("MatMul", ["input", "weight"], ["y"])], "MatMulIntegerToFloat"),
        ([*QUANTIZED_INPUT, *INT8_WEIGHT, *INT32_BIAS, node("Gemm", ["input", "weight", "bias"], ["y"])], "QGemm"),
    ],
)
def test_what_fuses_is_an_integer_product(tmp_path: Path, nodes: list[NodeProto], fused: str) -> None:
    census = count(tmp_path, nodes)
    assert (census.integer_products, census.float_weight_products) == ({fused: 1}, 0)
    assert (census.int8_weight_share, census.integer_share_outside_lstm) == (1.0, 1.0)
    assert census.operators[fused] == 1
    assert census.products == [Product(fused, "int8", "INT8", 256)]


@pytest.mark.parametrize(
    "nodes",
    [
        [*QUANTIZED_INPUT, *INT8_WEIGHT, node("Gemm", ["input", "weight", "float_bias"], ["y"])],
        [*QUANTIZED_INPUT, *INT8_WEIGHT, node("MatMul", ["input", "weight"], ["z"]), node("Add", ["z", "float_bias"], ["y"])],
        [*INT8_WEIGHT, node("MatMul", ["x", "weight"], ["y"])],
    ],
    ids=["Gemm with a float bias", "MatMul and a float bias", "weight only"],
)
def test_an_int8_weight_that_is_multiplied_in_float_is_found_out(tmp_path: Path, nodes: list[NodeProto]) -> None:
    """Stored in INT8, and dequantized to be multiplied: the file is small, and the product is not an integer one."""
    census = count(tmp_path, nodes)
    assert (census.integer_products, census.float_weight_products, census.int8_weight_share) == ({}, 1, 1.0)
    (product,) = census.products
    assert product.type == ("UINT8" if product.operator == "MatMulNBits" else "FLOAT") and product.size == 256


def test_a_weight_that_is_not_unpacked_at_loading_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its product would compute in floating point, as it does here, where nothing is folded or fused."""
    monkeypatch.setattr(census_module, "open_session", partial(open_session, optimise=False))
    unpacked = [node("Cast", ["int8"], ["cast"], to=TensorProto.INT8), node("Mul", ["cast", "int8"], ["unpacked"])]
    weight = node("DequantizeLinear", ["unpacked", "scale", "zero"], ["weight"], axis=1)
    census = count(tmp_path, [*QUANTIZED_INPUT, *unpacked, weight, node("MatMul", ["input", "weight"], ["y"])])
    assert census.float_weight_products == 1 and census.integer_products == {}


def test_a_float_weight_is_a_float_product(tmp_path: Path) -> None:
    census = count(tmp_path, [node("MatMul", ["x", "float"], ["y"])])
    assert (census.integer_products, census.float_weight_products) == ({}, 1)
    assert (census.int8_weight_share, census.integer_share_outside_lstm) == (0.0, 0.0)
    assert census.products == [Product("MatMul", "float", "FLOAT", 256)]


def test_shares_count_weights_and_products_of_activations_do_not_count(tmp_path: Path) -> None:
    nodes = [
        *QUANTIZED_INPUT,
        *INT8_WEIGHT,
        node("MatMul", ["input", "weight"], ["z"]),
        node("Transpose", ["z"], ["turned"]),
        node("MatMul", ["z", "turned"], ["pairs"]),  # [batch, batch], as in attention
        node("MatMul", ["pairs", "z"], ["mixed"]),
        node("MatMul", ["mixed", "small"], ["y"]),  # eight floats beside 256 integers
    ]
    census = count(tmp_path, nodes)
    assert (census.integer_products, census.float_weight_products) == ({"MatMulIntegerToFloat": 1}, 0)
    assert census.int8_weight_share == census.integer_share_outside_lstm == pytest.approx(256 / 264)
    assert [(product.weight, product.type) for product in census.products] == [("int8", "INT8")] + 3 * [(None, None)]


@pytest.mark.parametrize("name", ["small int8", "folded int8", "paper int8", "large int8", "large int8, lstm fp32"])
def test_no_float_weight_is_multiplied_in_an_int8_export(make: Make, name: str, tmp_path: Path) -> None:
    made = make(name)
    census = take_census(made.path)
    products = sum(node.op_type in ("Gemm", "MatMul") for node in made.nodes)
    of_activations = 2  # query · key, weights · value
    assert census.float_weight_products == 0
    assert sum(census.integer_products.values()) == products - of_activations
    assert census.integer_share_outside_lstm >= 0.98
    named = {product.weight: product for product in census.products if product.weight}
    tables = {f"{part}_selection.curves.integers" for part in ("history", "future")}
    assert {named[table].operator for table in tables} == {"MatMulIntegerToFloat"}
    lstm = {weight for weight in named if weight.startswith(("encoder.", "decoder."))}
    assert {named[weight].type for weight in lstm} == {"FLOAT"} and {named[weight].type for weight in named.keys() - lstm} == {"INT8"}
    assert sum(product.type == "INT8" for product in census.products) == sum(census.integer_products.values())
    stored = [tensor for tensor in made.graph.initializer if tensor.name.startswith(("encoder.ih_0", "encoder.hh_0"))]
    in_lstm = [tensor for tensor in stored if len(tensor.dims) == 3]  # beside the scale and the shape that it is given
    assert len(in_lstm) == 2
    stored_in_float = {tensor.data_type for tensor in in_lstm} == {TensorProto.FLOAT}
    assert (census.int8_weight_share < 0.98) == stored_in_float == (name in ("paper int8", "large int8, lstm fp32"))


def test_the_lstms_integers_are_floats_from_loading_on(make: Make, tmp_path: Path) -> None:
    """Not at every run, as behind a dequantizer: the runtime has arranged them for the product."""
    made = make("small int8")
    assert {weight.type for weight in stored_weights(made.path) if weight.lstm} == {"INT8"}
    open_session(made.path, optimised=tmp_path / "optimised.onnx")
    graph = onnx.load(tmp_path / "optimised.onnx").graph
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    weights = [constants[name] for part in graph.node if part.op_type == "LSTM" for name in part.input[1:3]]
    assert weights == [TensorProto.FLOAT] * 8  # two layers, twice


def test_an_lstm_of_integers_leaves_no_product_of_a_float_weight(make: Make, tmp_path: Path) -> None:
    made = make("small int8, lstm dynamic")
    census = take_census(made.path)
    assert census.integer_products["DynamicQuantizeLSTM"] == 4 and "LSTM" not in census.operators  # two layers, twice
    assert {product.type for product in census.products if product.weight} == {"INT8"}
    assert census.int8_weight_share == census.integer_share_outside_lstm == 1.0
    assert all(weight.lstm for weight in stored_weights(made.path) if weight.name.startswith(("encoder.", "decoder.")))


def test_kept_layers_are_named_and_everything_else_is_integer(make: Make, tmp_path: Path) -> None:
    """A weight of each kind of layer keeps its name, however the runtime fuses its product."""
    made = make("small int8, some kept")
    kept = made.model.kept_float
    census = take_census(made.path, kept=kept)
    sizes = {"encoder": 2 * 64 * 16, "history_selection.curves": 53 * 16, "attention.query": 256, "attention.value": 64}
    assert census.kept_float | sizes == census.kept_float and list(census.kept_float) == list(kept)
    floats = [product for product in census.products if product.kept]
    assert {product.type for product in floats} == {"FLOAT"} and len(floats) == 6 + 2  # the encoder has two weights
    assert all(product.type != "FLOAT" or product.operator == "LSTM" for product in census.products if not product.kept)
    assert (census.float_weight_products, census.integer_share_outside_lstm) == (0, 1.0) and census.int8_weight_share < 0.9
    assert read_metadata(made.path).kept_float == tuple(kept)
    assert "kept_float" not in describe(small_table(), "fp32", "points", None).to_json()


def test_shares_by_hand() -> None:
    weights = [
        StoredWeight("a.weight", "INT8", False, 15),
        StoredWeight("a.weight", "INT4", False, 45),
        StoredWeight("network.b.weight", "FLOAT", False, 20),
        StoredWeight("encoder.ih_0", "FLOAT", True, 20),
        StoredWeight("network.b.weight", "FLOAT", False, 20),  # in the other half of a pair too
    ]
    shares = {"int8_weight_share": 0.125, "int4_weight_share": 0.375}
    assert integer_shares(weights) == {**shares, "integer_share_outside_lstm": 0.6}
    assert integer_shares(weights, ["b"]) == {**shares, "integer_share_outside_lstm": 1.0}
    assert integer_shares(weights[3:4])["integer_share_outside_lstm"] == 1.0  # of none, all are
    assert kept_weights(weights, ["a", "b", "c", "encoder"]) == {"b": 20, "encoder": 20}


def test_an_fp32_export_is_all_float(make: Make, tmp_path: Path) -> None:
    census = take_census(make("small fp32").path)
    assert census.float_weight_products >= 25 and census.integer_products == {}
    assert (census.int8_weight_share, census.integer_share_outside_lstm) == (0.0, 0.0)


def test_a_graph_that_cannot_be_counted_leaves_nothing_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_stub(tmp_path / "stub.onnx")

    def fail(_: Path) -> list[StoredWeight]:
        raise OSError("no memory left")

    monkeypatch.setattr(census_module.onnx, "load", fail)
    with pytest.raises(OSError, match="no memory left"):
        take_census(path)
    assert list(tmp_path.iterdir()) == [path]
