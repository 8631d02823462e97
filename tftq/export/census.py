"""Which products of a graph really run in integers, and how many of its weights are stored so: counted, not claimed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from tftq.export.measure import SEVERITY_ERROR
from tftq.export.scan import every_graph

INTEGER_PRODUCTS = ("QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat")
FLOAT_PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulNBits")
WEIGHT_INPUTS = {
    **dict.fromkeys(("QGemm", "QLinearMatMul"), (3,)),
    **dict.fromkeys(("MatMulInteger", "MatMulIntegerToFloat"), (1,)),
    **dict.fromkeys(FLOAT_PRODUCTS, (0, 1)),
    "LSTM": (1, 2),
}
MIN_FLOAT_WEIGHTS = 16  # of a product; smaller float constants are signs and scales


@dataclass(frozen=True)
class Product:
    """One product of the optimised graph.

    Attributes:
        operator: that computes it.
        weight: the constant that it multiplies by; None where it multiplies two activations, as attention does.
        type: what the weight is multiplied as, by ONNX's name; None without a weight.
        size: weights.
    """

    operator: str
    weight: str | None
    type: str | None
    size: int


@dataclass(frozen=True)
class Census:
    """What the runtime made of a graph.

    Attributes:
        operators: how often each operator occurs in the optimised graph.
        products: each product there, the LSTM's among them, an entry for each of its weights.
        integer_products: products of integers, by operator.
        float_weight_products: products of a weight that remained in floating point, however it is stored; without the LSTM's.
        int8_weight_share: share of all weights that are stored as INT8.
        int8_share_outside_lstm: the same without the LSTM's.
    """

    operators: dict[str, int]
    products: list[Product]
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
    parts = list(every_graph(onnx.load(optimised).graph))
    operators = Counter(node.op_type for part in parts for node in part.node)
    products = list(_products(parts))
    share, outside = int8_shares(weight_counts(path))
    return Census(
        operators=dict(sorted(operators.items())),
        products=products,
        integer_products={name: operators[name] for name in INTEGER_PRODUCTS if operators[name]},
        float_weight_products=sum(product.operator in FLOAT_PRODUCTS and product.weight is not None for product in products),
        int8_weight_share=share,
        int8_share_outside_lstm=outside,
    )


def _products(parts: list[onnx.GraphProto]) -> Iterator[Product]:
    constants = {tensor.name: tensor for part in parts for tensor in part.initializer}
    dequantizers = {node.output[0]: node for part in parts for node in part.node if node.op_type == "DequantizeLinear"}
    for node in (node for part in parts for node in part.node if node.op_type in WEIGHT_INPUTS):
        weights, fewest = [], 1 if node.op_type in INTEGER_PRODUCTS else MIN_FLOAT_WEIGHTS
        for name in (node.input[place] for place in WEIGHT_INPUTS[node.op_type]):
            stored = multiplied = name
            if name in dequantizers:  # one that was not fused: its INT8 weight is multiplied in floating point
                stored, multiplied = dequantizers[name].input[:2]  # and that in its scale's
            if stored in constants and (size := int(np.prod(constants[stored].dims))) >= fewest:
                weights.append(Product(node.op_type, stored, TensorProto.DataType.Name(constants[multiplied].data_type), size))
        yield from weights or [Product(node.op_type, None, None, 0)]


def weight_counts(path: Path) -> Counter[tuple[bool, bool]]:
    """How many weights of a model are stored as INT8 or not, and are the LSTM's or not: (INT8, LSTM's) -> weights."""
    parts = list(every_graph(onnx.load(path).graph))
    stored = {tensor.name: tensor for part in parts for tensor in part.initializer}
    nodes = [node for part in parts for node in part.node]
    dequantized = {node.output[0]: node.input[0] for node in nodes if node.op_type == "DequantizeLinear"}
    totals: Counter[tuple[bool, bool]] = Counter()
    for node in nodes:
        if node.op_type in ("Gemm", "MatMul", "LSTM"):
            for name in node.input[1:3]:
                weight = stored.get(dequantized.get(name, name))
                if weight is not None and len(weight.dims) >= 2:  # a bias has one dimension
                    totals[weight.data_type == TensorProto.INT8, node.op_type == "LSTM"] += int(np.prod(weight.dims))
    return totals


def int8_shares(totals: Counter[tuple[bool, bool]]) -> tuple[float, float]:
    """The share of INT8 among the weights, with and without the LSTM's.

    Args:
        totals: of `weight_counts`, of a model or of its parts together.
    """
    everything = sum(totals.values())
    outside = totals[True, False] + totals[False, False]
    integer = totals[True, False] + totals[True, True]
    return integer / everything, totals[True, False] / outside
