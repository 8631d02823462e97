"""Compute a part of the graph one window after another, so that its memory does not grow with the batch.

The exporter writes no loops. So the part is traced between markers as if it saw one window, and then moved into the body of a Scan.
"""

from collections.abc import Callable, Iterable, Mapping

import onnx
import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from tftq.export.rewrite.nodes import replace_nodes

DOMAIN = "tftq"  # of the markers; none is in the graph in the end
ENTER, LEAVE = "OneWindow", "AllWindows"


def each_window(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Trace a computation that `write_scans` will make a Scan over the batch of.

    Args:
        compute: from one window's tensors to one tensor, all float32; it uses no other activations.
        inputs: of all windows [batch, ...] each.

    Returns:
        [batch, ...], float32.
    """
    windows = [torch.onnx.ops.symbolic(f"{DOMAIN}::{ENTER}", (x,), dtype=x.dtype, shape=x.shape[1:]) for x in inputs]
    result = compute(*windows)
    return torch.onnx.ops.symbolic(f"{DOMAIN}::{LEAVE}", (result,), dtype=result.dtype, shape=(inputs[0].shape[0], *result.shape))


def write_scans(model: onnx.ModelProto) -> None:
    """Turn the nodes between markers into a Scan, in place; its weights stay constants of the whole graph."""
    graph = model.graph
    maker = {output: node for node in graph.node for output in node.output}
    scans = {node.output[0]: _scan(node, graph, maker) for node in graph.node if node.op_type == LEAVE}
    # A node that both sides use, which then sees no window, stays outside.
    outside = _sources([output.name for output in graph.output], {**maker, **scans})
    nodes = [scans.get(node.output[0], node) for node in graph.node if node.output[0] in outside]
    assert not [node for node in nodes if node.op_type == ENTER], "what a window is made of is used outside its Scan"
    for scan in scans.values():
        body = helper.get_node_attr_value(scan, "body")
        replace_nodes(body, [node for node in body.node if node.output[0] not in outside])
    replace_nodes(graph, nodes)
    standard = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)


def _scan(leave: NodeProto, graph: onnx.GraphProto, maker: Mapping[str, NodeProto]) -> NodeProto:
    """Build a Scan in place of its last marker; its body holds everything since the first ones."""
    sources = _sources(leave.input, maker)
    part = [node for node in graph.node if node.output[0] in sources]
    windows = [node for node in part if node.op_type == ENTER]
    body = helper.make_graph(
        [node for node in part if node.op_type != ENTER],
        f"{leave.output[0]}_window",
        [_float(node.output[0]) for node in windows],
        [_float(leave.input[0])],
    )
    return helper.make_node("Scan", [node.input[0] for node in windows], leave.output, num_scan_inputs=len(windows), body=body)


def _sources(names: Iterable[str], maker: Mapping[str, NodeProto]) -> set[str]:
    """Collect the nodes, by their first output, that compute these tensors, back to where a window is entered."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        node = maker.get(pending.pop())
        if node is not None and node.output[0] not in found:
            found.add(node.output[0])
            if node.op_type != ENTER:
                pending += node.input
    return found


def _float(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
