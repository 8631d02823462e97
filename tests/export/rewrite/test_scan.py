"""A small network with a part between markers, traced, rewritten, and run beside what it should compute."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from tests.export.made import nodes_of
from tftq.export.graph import build_graph
from tftq.export.rewrite.scan import each_window, write_scans
from tftq.spec.metadata import Metadata

METADATA = Metadata(model="scan", format="fp32", oldest_runtime="1.18", lookback=5, inputs={}, versions={})


class Network(nn.Module):
    """Rows through a matrix inside a window, its squares outside; both sides use the matrix."""

    weight: Tensor

    def __init__(self, over: Callable[..., Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(12.0).reshape(3, 4))
        self.over = over

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        product = self.over(lambda rows, more: rows @ self.weight.exp() + more.sum(), x, y)  # [batch, 5, 4]
        return product + (x @ self.weight.exp()).square()


def plain(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return torch.stack([compute(*window) for window in zip(*inputs, strict=True)])


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_a_scan_computes_what_its_part_computes_of_each_window(batch: int) -> None:
    graph = build_graph(Network(each_window), {"x": (2, 5, 3), "y": (2, 6)}, ("result",), METADATA)
    x, y = torch.rand(batch, 5, 3), torch.rand(batch, 6)
    expected = Network(plain)(x, y).numpy()
    inputs = {"x": x.numpy(), "y": y.numpy()}
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(ReferenceEvaluator(onnx.load_from_string(graph)).run(None, inputs)[0], expected, rtol=1e-5)


def test_no_marker_is_left_and_every_node_is_there_once() -> None:
    model = onnx.load_from_string(build_graph(Network(each_window), {"x": (2, 5, 3), "y": (2, 6)}, ("result",), METADATA))
    assert {entry.domain for entry in model.opset_import} == {""}
    nodes = nodes_of(model.graph)
    assert {node.domain for node in nodes} == {""} and [node.op_type for node in nodes].count("Scan") == 1
    made = [output for node in nodes for output in node.output]
    assert len(made) == len(set(made))


def test_a_window_that_is_used_outside_its_scan_is_found_out() -> None:
    float_ = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("OneWindow", ["x"], ["window"], domain="tftq"),
            helper.make_node("Neg", ["window"], ["negative"]),
            helper.make_node("AllWindows", ["negative"], ["all"], domain="tftq"),
            helper.make_node("Add", ["all", "negative"], ["y"]),
        ],
        "leaking",
        [helper.make_tensor_value_info("x", float_, ["batch", 3])],
        [helper.make_tensor_value_info("y", float_, ["batch", 3])],
    )
    with pytest.raises(AssertionError, match="used outside its Scan"):
        write_scans(helper.make_model(graph))
