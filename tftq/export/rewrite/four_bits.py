"""Store weights in four bits: half their bytes in the file; the runtime unpacks them to INT8 once, at loading.

A runtime that finds an INT4 weight behind a DequantizeLinear multiplies floats. So what is dequantized here is INT8, unpacked from INT4 by
operators on constants, which are computed at loading: from there on the graph is that of INT8. torch has no four bits; so the weight is
traced behind a marker as INT8, and then packed.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from tftq.export.rewrite.nodes import every_graph, replace_nodes
from tftq.export.rewrite.scan import DOMAIN

MARKER = "FourBits"


def unpacked(integers: Tensor) -> Tensor:
    """Trace a weight that `write_four_bits` will store in four bits.

    Args: integers: a constant, int8 from -8 to 7. Returns: the same, int8.
    """
    return torch.onnx.ops.symbolic(f"{DOMAIN}::{MARKER}", (integers,), dtype=torch.int8, shape=integers.shape)


def unpacked_curves(offsets: Tensor, base: Tensor, step: Tensor, counts: Sequence[int]) -> Tensor:
    """Trace a table of curves, base + step · offset, whose offsets `write_four_bits` will store in four bits.

    Args:
        offsets: a constant, int8 from -8 to 7 [rows, channels].
        base, step: constants, of each curve, int8 [curves, channels].
        counts: rows of each curve.

    Returns:
        The table, int8 [rows, channels].
    """
    attributes: dict[str, Any] = {"counts": list(counts)}
    return torch.onnx.ops.symbolic(f"{DOMAIN}::{MARKER}", (offsets, base, step), attributes, dtype=torch.int8, shape=offsets.shape)


def write_four_bits(model: onnx.ModelProto) -> None:
    """Store marked weights in four bits and unpack them under their traced names, in place, where they are used.

    That may be the body of a loop: OpenVINO lets it refer to constants outside, but to nothing computed there. ONNX Runtime computes what
    depends on constants alone in a body too when it loads the file.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made: dict[str, str] = {}  # a marker's traced output -> the name of the unpacked weight in its place
    for part in reversed(list(every_graph(graph))):  # bodies first: their graphs are copied with them
        unpacking: list[NodeProto] = []
        marked = [node for node in part.node if node.op_type == MARKER]
        for node in marked:
            part.node.remove(node)
            traced = [numpy_helper.to_array(constants[name]) for name in node.input]
            name = node.input[0]
            while name in made.values():  # of equal small constants the exporter leaves one
                name += "_"
            if len(traced) == 1:
                nodes, stored = _weight(name, *traced)
            else:
                nodes, stored = _curves(name, *traced, counts=helper.get_node_attr_value(node, "counts"))
            made[node.output[0]] = name
            unpacking += nodes
            graph.initializer.extend(stored)
        for node in part.node:
            for place, name in enumerate(node.input):
                node.input[place] = made.get(name, name)
        replace_nodes(part, [*unpacking, *part.node])
    for name in {name for name in constants if name in made.values()}:
        graph.initializer.remove(constants[name])


def _weight(name: str, integers: np.ndarray) -> tuple[list[NodeProto], list[TensorProto]]:
    """Build the operators that unpack an INT8 weight, and its stored constants."""
    return [helper.make_node("Cast", [f"{name}.int4"], [name], to=TensorProto.INT8)], [_packed(f"{name}.int4", integers)]


def _curves(
    name: str, offsets: np.ndarray, base: np.ndarray, step: np.ndarray, *, counts: Sequence[int]
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Build the same for a table, neighbouring curves with equal numbers of rows together."""
    shape = numpy_helper.from_array(np.array([-1, offsets.shape[1]]), f"{name}.shape")
    nodes, stored = [], [shape]
    runs: list[str] = []
    curve = row = 0
    for count, group in groupby(counts):
        curves = len(list(group))
        run, part, rows = f"{name}.{len(runs)}", slice(curve, curve + curves), slice(row, row + curves * count)
        stored += [
            _packed(f"{run}.int4", offsets[rows].reshape(curves, count, -1)),
            numpy_helper.from_array(base[part, None], f"{run}.base"),  # [curves, 1, channels]
            numpy_helper.from_array(step[part, None], f"{run}.step"),
        ]
        nodes += [
            helper.make_node("Cast", [f"{run}.int4"], [f"{run}.offsets"], to=TensorProto.INT8),
            helper.make_node("Mul", [f"{run}.offsets", f"{run}.step"], [f"{run}.steps"]),
            helper.make_node("Add", [f"{run}.steps", f"{run}.base"], [f"{run}.curves"]),
            helper.make_node("Reshape", [f"{run}.curves", shape.name], [run]),
        ]
        runs.append(run)
        curve, row = part.stop, rows.stop
    if len(runs) > 1:
        nodes.append(helper.make_node("Concat", runs, [name], axis=0))
    else:
        nodes[-1].output[0] = name
    return nodes, stored


def _packed(name: str, values: np.ndarray) -> TensorProto:
    """Pack an INT4 constant: two to a byte, the first in the lower half."""
    halves = values.reshape(-1).view(np.uint8) & 0xF
    pairs = np.append(halves, np.zeros(len(halves) % 2, np.uint8)).reshape(-1, 2)
    packed = TensorProto(name=name, data_type=TensorProto.INT4, raw_data=(pairs[:, 0] | pairs[:, 1] << 4).tobytes())
    packed.dims.extend(values.shape)
    return packed
