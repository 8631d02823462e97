"""Which products of a graph really run in integers, and how many of its weights are stored so: counted, not claimed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tftq.export.measure import SEVERITY_ERROR

INTEGER_PRODUCTS = ("QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat")
FLOAT_PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulNBits")
MIN_WEIGHT_SIZE = 16  # smaller constants are shapes, signs and scales


@dataclass(frozen=True)
class Census:
    """What the runtime made of a graph.

    Attributes:
        operators: how often each operator occurs in the optimised graph.
        integer_products: products of integers, by operator.
        float_weight_products: products of a weight that remained in floating point, however it is stored; those of two activations, as in
            attention, do not count.
        int8_weight_share: share of all weights that are stored as INT8.
        int8_share_outside_lstm: the same without the LSTM's.
    """

    operators: dict[str, int]
    integer_products: dict[str, int]
    float_weight_products: int
    int8_weight_share: float
    int8_share_outside_lstm: float


def take_census(path: Path, optimised: Path) -> Census:
    """Count a model's products as ONNX Runtime's CPU provider runs them, and its weights as they are stored.

    Args:
        path: the model.
        optimised: where to write the optimised graph.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fused = onnx.load(optimised).graph
    constants = {tensor.name: int(np.prod(tensor.dims)) for tensor in fused.initializer}
    for node in fused.node:
        if node.op_type == "DequantizeLinear":  # one that was not fused: its INT8 weight is multiplied in floating point
            constants[node.output[0]] = constants.get(node.input[0], 0)
    operators = Counter(node.op_type for node in fused.node)
    remained = sum(
        node.op_type in FLOAT_PRODUCTS and any(constants.get(name, 0) >= MIN_WEIGHT_SIZE for name in node.input[:2]) for node in fused.node
    )
    share, outside = _int8_shares(onnx.load(path).graph)
    return Census(
        operators=dict(sorted(operators.items())),
        integer_products={name: operators[name] for name in INTEGER_PRODUCTS if operators[name]},
        float_weight_products=remained,
        int8_weight_share=share,
        int8_share_outside_lstm=outside,
    )


def _int8_shares(graph: onnx.GraphProto) -> tuple[float, float]:
    """The share of INT8 among the weights, with and without the LSTM's."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    dequantized = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    totals: Counter[tuple[bool, bool]] = Counter()  # (is INT8, is the LSTM's) -> weights
    for node in graph.node:
        if node.op_type in ("Gemm", "MatMul", "LSTM"):
            for name in node.input[1:3]:
                weight = stored.get(dequantized.get(name, name))
                if weight is not None and len(weight.dims) >= 2:  # a bias has one dimension
                    totals[weight.data_type == onnx.TensorProto.INT8, node.op_type == "LSTM"] += int(np.prod(weight.dims))
    everything = sum(totals.values())
    outside = totals[True, False] + totals[False, False]
    integer = totals[True, False] + totals[True, True]
    return integer / everything, totals[True, False] / outside
