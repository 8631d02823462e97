"""Count the products of a graph that really run in integers, and the weights that are stored as integers."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from tftq.export.rewrite.nodes import every_graph
from tftq.serve.session import open_session

INTEGER_PRODUCTS = ("QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeLSTM")
FLOAT_PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulNBits")
WEIGHT_INPUTS = {
    **dict.fromkeys(("QGemm", "QLinearMatMul"), (3,)),
    **dict.fromkeys(("MatMulInteger", "MatMulIntegerToFloat"), (1,)),
    **dict.fromkeys(FLOAT_PRODUCTS, (0, 1)),
    **dict.fromkeys(("LSTM", "DynamicQuantizeLSTM"), (1, 2)),
}
LSTMS = ("LSTM", "DynamicQuantizeLSTM")
WHOLE = "network"  # the prefix of the model's names in a half of a streaming pair
UNPACKING = ("Cast", "Mul", "Add", "Reshape", "Concat")  # the operators that unpack weights in four bits to INT8
MIN_FLOAT_WEIGHTS = 16  # of a product; smaller float constants are signs and scales


@dataclass(frozen=True)
class Product:
    """One product of the optimised graph.

    Attributes:
        operator: the one that computes it.
        weight: the constant factor; None where it multiplies two activations, as attention does.
        type: the weight's type in the product, by ONNX's name; None without a weight.
        size: weights.
        kept: its layer was to stay in floating point.
    """

    operator: str
    weight: str | None
    type: str | None
    size: int
    kept: bool = False


class StoredWeight(NamedTuple):
    """A stored weight of a product: its name, its type by ONNX's name, whether it is the LSTM's, and its size."""

    name: str
    type: str
    lstm: bool
    size: int

    @property
    def integer(self) -> bool:
        """Return whether it is stored in integers."""
        return self.type in ("INT8", "INT4")

    @property
    def layer(self) -> str:
        """Return the layer that it belongs to."""
        return layer_of(self.name)


@dataclass(frozen=True)
class Census:
    """The operators and products of a graph as the runtime executes it.

    Attributes:
        operators: how often each operator occurs in the optimised graph.
        products: each product there, the LSTM's among them, an entry for each of its weights.
        integer_products: products of integers, by operator.
        float_weight_products: products of a weight that remained in floating point, however it is stored; without the LSTM's, and
            without those of layers that were to stay so.
        kept_float: layer -> its weights, of the layers that were to stay in floating point and do.
        int8_weight_share: share of all weights that are stored as INT8.
        int4_weight_share: the same of INT4, which the runtime converts to INT8 when it loads the file.
        integer_share_outside_lstm: of both together, without the LSTM's, and without those of layers that were to stay in floating point.
    """

    operators: dict[str, int]
    products: list[Product]
    integer_products: dict[str, int]
    float_weight_products: int
    float_lstm_weights: int
    kept_float: dict[str, int]
    int8_weight_share: float
    int4_weight_share: float
    integer_share_outside_lstm: float


def take_census(*paths: Path, kept: Collection[str] = ()) -> Census:
    """Count a model's products as ONNX Runtime's CPU provider runs them, and its weights as they are stored.

    Args:
        paths: the model, or the halves of a streaming pair, which are counted together; the optimised graph is written beside each for as
            long as it is read.
        kept: the layers that were to stay in floating point.
    """
    graphs = [_optimised_graphs(path) for path in paths]
    operators = Counter(node.op_type for parts in graphs for part in parts for node in part.node)
    products = [product for parts in graphs for product in _products(parts, kept)]
    weights = [weight for path in paths for weight in stored_weights(path)]
    return Census(
        operators=dict(sorted(operators.items())),
        products=products,
        integer_products={name: operators[name] for name in INTEGER_PRODUCTS if operators[name]},
        float_weight_products=sum(
            product.operator in FLOAT_PRODUCTS and product.weight is not None and not product.kept for product in products
        ),
        float_lstm_weights=float_lstm_weights(weights, kept),
        kept_float=kept_weights(weights, kept),
        **integer_shares(weights, kept),
    )


def _optimised_graphs(path: Path) -> list[onnx.GraphProto]:
    """Return the graph that the runtime computes, and the bodies of its loops."""
    optimised = path.with_suffix(".optimised")
    try:
        open_session(path, optimised=optimised)
        return list(every_graph(onnx.load(optimised).graph))
    finally:
        optimised.unlink(missing_ok=True)


def _products(parts: list[onnx.GraphProto], kept: Collection[str]) -> Iterator[Product]:
    constants = {tensor.name: tensor for part in parts for tensor in part.initializer}
    makers = {output: node for part in parts for node in part.node for output in node.output}
    for node in (node for part in parts for node in part.node if node.op_type in WEIGHT_INPUTS):
        weights, fewest = [], 1 if node.op_type in INTEGER_PRODUCTS else MIN_FLOAT_WEIGHTS
        for name in (node.input[place] for place in WEIGHT_INPUTS[node.op_type]):
            stored = multiplied = name
            if name in makers and makers[name].op_type == "DequantizeLinear":  # not fused: its weight is multiplied in floating point
                stored, multiplied = makers[name].input[:2]  # and that in its scale's
            tensors = _unpacked_from(stored, constants, makers)
            if (size := sum(int(np.prod(tensor.dims)) for tensor in tensors)) >= fewest:
                type_ = TensorProto.DataType.Name(constants.get(multiplied, tensors[0]).data_type)
                weights.append(Product(node.op_type, stored, type_, size, layer_of(stored) in kept))
        yield from weights or [Product(node.op_type, None, None, 0)]


def stored_weights(path: Path) -> list[StoredWeight]:
    """List the weights of a model's products as they are stored; one for each use."""
    parts = list(every_graph(onnx.load(path).graph))
    stored = {tensor.name: tensor for part in parts for tensor in part.initializer}
    nodes = [node for part in parts for node in part.node]
    makers = {output: node for node in nodes for output in node.output}
    weights = []
    for node in nodes:
        if node.op_type in ("Gemm", "MatMul", *LSTMS):
            for name in node.input[1:3]:
                maker = makers.get(name)
                name = maker.input[0] if maker is not None and maker.op_type == "DequantizeLinear" else name
                for tensor in _unpacked_from(name, stored, makers):
                    if len(tensor.dims) >= 2:  # a bias has one dimension
                        type_ = TensorProto.DataType.Name(tensor.data_type)
                        weights.append(StoredWeight(name, type_, node.op_type in LSTMS, int(np.prod(tensor.dims))))
    return weights


def _unpacked_from(name: str, stored: Mapping[str, TensorProto], makers: Mapping[str, NodeProto]) -> list[TensorProto]:
    """Return the constants of a weight, or those it is unpacked from at loading; none where it depends on an input."""
    if name in stored:
        return [stored[name]]
    if name not in makers or makers[name].op_type not in UNPACKING:
        return []
    found = [_unpacked_from(part, stored, makers) for part in makers[name].input]
    return [tensor for tensors in found for tensor in tensors] if all(found) else []


def integer_shares(weights: Sequence[StoredWeight], kept: Collection[str] = ()) -> dict[str, float]:
    """Compute the shares of a `Census`.

    Args:
        weights: of a model, or of its parts together.
        kept: the layers that were to stay in floating point.
    """
    outside = [weight for weight in weights if not weight.lstm and weight.layer not in kept]
    return {
        "int8_weight_share": _share(weights, [weight for weight in weights if weight.type == "INT8"]),
        "int4_weight_share": _share(weights, [weight for weight in weights if weight.type == "INT4"]),
        "integer_share_outside_lstm": _share(outside, [weight for weight in outside if weight.integer]),
    }


def float_lstm_weights(weights: Sequence[StoredWeight], kept: Collection[str] = ()) -> int:
    """Count the LSTM's weights stored in floating point, without those of layers that were to stay so.

    Args: see `integer_shares`.
    """
    return sum(weight.size for weight in weights if weight.lstm and not weight.integer and weight.layer not in kept)


def kept_weights(weights: Sequence[StoredWeight], kept: Collection[str]) -> dict[str, int]:
    """Count the weights of each layer that was to stay in floating point and does.

    Args: see `integer_shares`.
    """
    once = {weight for weight in weights if not weight.integer}  # though both halves of a streaming pair may use it
    sizes = {layer: sum(weight.size for weight in once if weight.layer == layer) for layer in kept}
    return {layer: size for layer, size in sizes.items() if size}


def layer_of(weight: str) -> str:
    """Derive the name of a weight's layer from the weight's own name."""
    return weight.removeprefix(f"{WHOLE}.").rpartition(".")[0]


def _share(weights: Sequence[StoredWeight], part: Sequence[StoredWeight]) -> float:
    """Return a share; 1 of an empty whole."""
    everything = sum(weight.size for weight in weights)
    return sum(weight.size for weight in part) / everything if everything else 1.0
