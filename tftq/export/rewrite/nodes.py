"""Helpers of the passes: iterate over a model's graphs, and replace their nodes."""

from collections.abc import Iterable, Iterator

import onnx
from onnx import AttributeProto, NodeProto


def every_graph(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Iterate over a graph and the bodies of its loops, itself first."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from every_graph(attribute.g)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace all nodes of a graph; the new ones may be its own."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
