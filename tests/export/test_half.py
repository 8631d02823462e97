"""The files for a GPU: what they compute, what they store, and that ONNX Runtime's CUDA provider has every operator of them."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, numpy_helper

from tests.export.made import Make, nodes_of
from tests.model.small import column_scaling, small_inputs
from tests.quant.small import calibrated, small_batch, small_table
from tftq.export.forecaster import run_file
from tftq.export.gate import HALF
from tftq.export.half import asinh
from tftq.model.scaling import InputScaling
from tftq.serve.session import SEVERITY_ERROR

pytestmark = pytest.mark.xdist_group("exports")

FLOAT16, INT8 = TensorProto.FLOAT16, TensorProto.INT8
# With kernels of the CUDA provider at opset 21 for the types they have here, by ONNX Runtime's own list of operator kernels.
ON_CUDA = {
    *("Abs", "Add", "Cast", "Clip", "Concat", "CumSum", "DequantizeLinear", "Div", "Elu", "Equal", "Exp", "Expand", "Floor", "Gather"),
    *("GatherND", "Gemm", "Greater", "Identity", "LSTM", "LayerNormalization", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Pow"),
    *("Reciprocal", "ReduceMean", "ReduceSum", "Reshape", "ScatterElements", "Shape", "Sigmoid", "Sign", "Slice", "Softmax", "Softplus"),
    *("Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Trilu", "Unsqueeze", "Where"),
}
INT8_WEIGHTS = ["fp16_int8", "fp16_int8, lstm fp16"]
PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "LSTM")


def distance(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.ptp(other))


def optimised(path: Path, folder: Path, **entries: str) -> onnx.GraphProto:
    """The graph as ONNX Runtime optimises it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key}", value)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx").graph


def matrices(graph: onnx.GraphProto) -> Counter[int]:
    """How many matrices of weights there are of each type."""
    large = (tensor for tensor in graph.initializer if sum(size > 1 for size in tensor.dims) > 1 and math.prod(tensor.dims) >= 64)
    return Counter(tensor.data_type for tensor in large)


@pytest.mark.parametrize("name", ["small fp16", *INT8_WEIGHTS])
def test_the_cuda_provider_has_every_operator(make: Make, name: str) -> None:
    nodes = make(name).nodes
    assert {node.op_type for node in nodes} <= ON_CUDA
    assert {node.domain for node in nodes} == {""}


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("optimise", [False, True], ids=["as written", "as optimised"])
@pytest.mark.parametrize("name", INT8_WEIGHTS)
def test_fp16_int8_is_near_the_model_whose_weights_are_rounded(make: Make, name: str, optimise: bool, batch: int) -> None:
    made = make(name)
    windows = small_batch(made.model.inputs, batch)
    with torch.no_grad():
        expected = made.model(*windows.inputs).numpy()
    assert 1e-6 < distance(run_file(made.path, windows, optimise=optimise), expected) <= HALF / 10


def test_the_weights_are_rounded_and_the_activations_are_not(make: Make) -> None:
    """Nearer to the model whose weights are rounded than to the float one, and than to the one that rounds activations too."""
    made, table = make("fp16_int8"), small_table(static=False, lstm_layers=1)
    windows = small_batch(table.inputs, 32)
    with torch.no_grad():
        rounded, floating, integer = (model(*windows.inputs).numpy() for model in (made.model, table.eval(), calibrated(table, "int8")))
    found = run_file(made.path, windows)
    assert 3 * distance(found, rounded) < min(distance(found, floating), distance(found, integer))


@pytest.mark.parametrize(("name", "lstm"), [(INT8_WEIGHTS[0], INT8), (INT8_WEIGHTS[1], FLOAT16)])
def test_every_product_multiplies_by_a_dequantized_weight(make: Make, name: str, lstm: int) -> None:
    made = make(name)
    constants = {tensor.name: tensor for tensor in made.graph.initializer}
    maker = {output: node for node in made.nodes for output in node.output}
    kinds = []
    for node in made.nodes:
        for weight in node.input[1:3] if node.op_type == "LSTM" else node.input[1:2]:
            if node.op_type not in PRODUCTS or (weight not in constants and maker[weight].op_type != "DequantizeLinear"):
                continue  # the mask, and what attention multiplies: activations
            if weight in constants:
                kinds.append((node.op_type, constants[weight].data_type))
                continue
            integers, scale, zero = (numpy_helper.to_array(constants[part]) for part in maker[weight].input)
            assert (integers.dtype, scale.dtype, zero.any()) == (np.int8, np.float16, False) and np.isfinite(scale).all()
            kinds.append((node.op_type, INT8))
    assert {kind for operator, kind in kinds if operator == "LSTM"} == {lstm}
    assert {(operator, kind) for operator, kind in kinds if operator != "LSTM"} == {("Gemm", INT8)}
    assert matrices(made.graph).keys() - {TensorProto.BOOL} == {INT8, lstm}


@pytest.mark.parametrize("name", INT8_WEIGHTS)
def test_optimising_leaves_the_weights_in_int8(make: Make, name: str, tmp_path: Path) -> None:
    """Neither folded to what they are dequantized to, nor made a `MatMulNBits`, which rounds activations too on a CPU."""
    made = make(name)
    graph = optimised(made.path, tmp_path)
    assert matrices(graph)[INT8] == matrices(made.graph)[INT8]
    assert "MatMulNBits" not in {node.op_type for node in nodes_of(graph)}
    assert matrices(optimised(made.path, tmp_path, disable_quant_qdq="1"))[INT8] == 0, "this is what a session must not ask for"


def test_asinh_written_out() -> None:
    x = torch.tensor([-1e6, -20.0, -1.0, -1e-3, 0.0, 1e-5, 0.5, 3.0, 1e4, 1e9])
    torch.testing.assert_close(asinh(x), torch.asinh(x), rtol=1e-6, atol=2e-7)
    assert asinh(torch.tensor([torch.inf, -torch.inf])).tolist() == [torch.inf, -torch.inf]


def test_scaling_takes_another_asinh() -> None:
    inputs = small_inputs()
    scaling = InputScaling(column_scaling(inputs.history))
    assert bool(scaling.tailed.any())
    x = torch.randn(4, len(inputs.history)) * 5
    expected = scaling(x)
    scaling.asinh = asinh
    torch.testing.assert_close(scaling(x), expected)
