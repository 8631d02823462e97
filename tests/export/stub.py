"""A forecaster of one product, as a torch module and as hand-written ONNX that can be spoilt in one way at a time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from tftq.model.batch import Batch

OFFSETS = (-1.0, 0.0, 1.0, -2.0, 0.0, 2.0)  # two steps, three quantiles
STEP = 1 / 8  # of the inputs, which are whole numbers of it: quantizing them changes nothing


class Stub(nn.Module):
    """The mean of the history plus an offset for each step and quantile."""

    offsets: Tensor
    target_scale: Tensor
    quantiles = (0.1, 0.5, 0.9)
    kept_float: tuple[str, ...] = ()

    def __init__(self, offsets: Sequence[float] = OFFSETS, *, batch_share: float = 0.0) -> None:
        super().__init__()
        self.batch_share = batch_share
        self.register_buffer("offsets", torch.tensor(offsets).reshape(2, 3))
        self.register_buffer("target_scale", torch.tensor([1.0, 2.0]))

    def forward(self, history: Tensor, future: Tensor) -> Tensor:
        forecast = history.mean(dim=(1, 2))[:, None, None] + self.offsets
        return forecast + self.batch_share * forecast.mean(dim=0)


def stub_batch(count: int = 20, *, seed: int = 0) -> Batch:
    """History [batch, 3, 2], future [batch, 2, 1], a target that is the mean of the history."""
    history = torch.randint(-100, 100, (count, 3, 2), generator=torch.Generator().manual_seed(seed)) * STEP
    return Batch(history, torch.zeros(count, 2, 1), None, history.mean(dim=(1, 2))[:, None].expand(-1, 2))


def write_stub(
    path: Path,
    offsets: Sequence[float] = OFFSETS,
    *,
    integer: bool = False,
    batch_share: float = 0.0,
    after: Sequence[NodeProto] = (),
    constants: dict[str, np.ndarray] | None = None,
) -> Path:
    """The ONNX file of a stub.

    Args:
        offsets: what it adds.
        integer: its product in QDQ.
        batch_share: how much of the batch's mean it adds to each window.
        after: more nodes, from `whole` to `forecast`, both [batch, 2, 3].
        constants: for them.
    """
    weight = np.full((6, 6), 1 / 6, np.float32)
    values: dict[str, np.ndarray] = {
        "flat": np.array([0, 6]),
        "shape": np.array([0, 2, 3]),
        "first": np.array([0]),
        "weight": np.full((6, 6), 127, np.int8) if integer else weight,
        "weight_scale": np.full(6, 1 / 6 / 127, np.float32),
        "weight_zero": np.zeros(6, np.int8),
        "input_scale": np.array(STEP, np.float32),
        "input_zero": np.array(128, np.uint8),
        "offsets": np.array(offsets, np.float32).reshape(2, 3),
        "share": np.array(batch_share, np.float32),
        **(constants or {}),
    }
    node = helper.make_node
    product = [node("MatMul", ["rows", "weight"], ["product"])]
    if integer:
        product = [
            node("QuantizeLinear", ["rows", "input_scale", "input_zero"], ["integers"]),
            node("DequantizeLinear", ["integers", "input_scale", "input_zero"], ["input"]),
            node("DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["float_weight"], axis=1),
            node("MatMul", ["input", "float_weight"], ["product"]),
        ]
    mixing = [node("Identity", ["alone"], ["whole"])]
    if batch_share:
        mixing = [
            node("ReduceMean", ["alone", "first"], ["mean"]),
            node("Mul", ["mean", "share"], ["shared"]),
            node("Add", ["alone", "shared"], ["whole"]),
        ]
    nodes = [
        node("Reshape", ["history", "flat"], ["rows"]),
        *product,
        node("Reshape", ["product", "shape"], ["centre"]),
        node("Add", ["centre", "offsets"], ["alone"]),
        *mixing,
        *(after or [node("Identity", ["whole"], ["forecast"])]),
    ]

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])

    initializers = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "stub", [tensor("history", 3, 2), tensor("future", 2, 1)], [tensor("forecast", 2, 3)], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
