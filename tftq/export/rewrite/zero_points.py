"""Give each dequantizer its own copy of shared zero points and small weights."""

import onnx

from tftq.export.rewrite.nodes import every_graph


def own_zero_points(model: onnx.ModelProto) -> None:
    """Give each dequantizer of a weight constants of its own, in place; a runtime that rewrites weights as UINT8 fails on shared ones.

    Of equal small ones the tracer leaves one, under the name of the first.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    dequantized: set[str] = set()
    for part in every_graph(graph):
        for node in part.node:
            if node.op_type == "DequantizeLinear" and constants[node.input[2]].dims:  # one per channel, as only weights and biases have
                weight = own = node.input[0]
                while own in dequantized:
                    own += "_"
                dequantized.add(own)
                if own != weight and weight in constants:  # an unpacked weight is no constant before the runtime has folded it
                    graph.initializer.add().CopyFrom(constants[weight])
                    graph.initializer[-1].name = node.input[0] = own
                graph.initializer.add().CopyFrom(constants[node.input[2]])
                graph.initializer[-1].name = node.input[2] = f"{own}.zero_point"
    used = {name for part in every_graph(graph) for node in part.node for name in node.input}
    for name in constants.keys() - used:
        graph.initializer.remove(constants[name])
