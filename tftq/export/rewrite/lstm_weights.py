"""Convert INT8 weights of float LSTMs to floats once, when the file is loaded."""

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tftq.export.rewrite.nodes import replace_nodes


def load_as_floats(model: onnx.ModelProto) -> None:
    """Replace the dequantizers of FP32 LSTMs' INT8 weights by operators on constants, in place.

    A runtime keeps a dequantizer of a constant for a product to take it in, which an LSTM does not: it would dequantize at every run, and
    the weights would not be arranged for the product beforehand. Operators on constants it computes at loading, to the same floats.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    nodes: list[NodeProto] = []
    made: dict[str, str] = {}  # a dequantizer's output -> the floats in its place; of equal small constants the exporter leaves one
    for lstm in (node for node in graph.node if node.op_type == "LSTM"):
        for place in (1, 2):
            given = lstm.input[place]
            if given not in made:
                dequantizer = makers.get(given)
                if dequantizer is None or dequantizer.op_type != "DequantizeLinear":
                    continue
                weight, scale, _ = dequantizer.input
                if constants[scale].data_type != TensorProto.FLOAT:
                    continue
                name = weight
                while name in made.values():
                    name += "_"
                constants[weight].name = f"{weight}.int8"
                graph.initializer.append(numpy_helper.from_array(np.array([1, -1, 1]), f"{name}.shape"))
                nodes += [
                    helper.make_node("Cast", [f"{weight}.int8"], [f"{name}.integers"], to=TensorProto.FLOAT),
                    helper.make_node("Reshape", [scale, f"{name}.shape"], [f"{name}.steps"]),
                    helper.make_node("Mul", [f"{name}.integers", f"{name}.steps"], [name]),
                ]
                graph.node.remove(dequantizer)
                made[given] = name
            lstm.input[place] = made[given]
    replace_nodes(graph, [*nodes, *graph.node])
