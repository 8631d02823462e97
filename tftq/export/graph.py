"""From a model, a TFT in the table form, to ONNX bytes: traced, named, described, and stripped of what only the tracer needs."""

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
from torch import nn

from tftq.export.deploy import compute_by_window, deploy
from tftq.export.half import deploy_half
from tftq.export.lstm import load_as_floats
from tftq.export.rewrite.four_bits import write_four_bits
from tftq.export.rewrite.scan import every_graph, write_scans
from tftq.export.tracing import traced
from tftq.io import installed
from tftq.model.forecaster import Forecaster
from tftq.spec.metadata import METADATA_KEY

EXAMPLE_BATCH = 2  # a batch of one would be taken for a constant


def build_graph(model: Forecaster, metadata: Mapping[str, object], *, half: bool = False) -> bytes:
    """An ONNX model: raw columns in, `forecast` [batch, horizon, quantiles] in the target's unit out, any batch size.

    Args:
        model: a TFT in the table form; where prepared and calibrated, its weights are stored as INT8, and the products are of integers.
        metadata: what to note in the file beside the inputs, as JSON.
        half: products in FP16, for a GPU, of weights in INT8 too.

    Returns:
        The serialized model; the same for the same model.
    """
    if half:
        deployed = deploy_half(model)
    else:
        deployed = deploy(model)
        compute_by_window(deployed)  # not for a GPU, which wants few and large products
    return trace(deployed, model.inputs.shapes(EXAMPLE_BATCH), ("forecast",), {**describe_model(model), **metadata})


def trace(network: nn.Module, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[str, ...], metadata: Mapping[str, object]) -> bytes:
    """An ONNX model of any network that `deploy` made, or that is made of one.

    Args:
        network: in eval mode.
        shapes: its inputs by name and in order, each of a batch of `EXAMPLE_BATCH`.
        outputs: the names of what it gives, in order.
        metadata: what to note in the file, as JSON.

    Returns:
        The serialized model; the same for the same network.
    """
    graph = traced(network.cpu(), shapes, outputs)
    write_scans(graph)
    write_four_bits(graph)
    load_as_floats(graph)
    _own_zero_points(graph.graph)
    _strip(graph)
    _describe(graph, {"versions": _versions(), **metadata})
    onnx.checker.check_model(graph, full_check=False)
    return graph.SerializeToString(deterministic=True)


def describe_model(model: Forecaster) -> dict[str, object]:
    """What a caller must know: kind, each input's columns in order and those left out, window, quantiles, and what stayed in float."""
    inputs = model.inputs
    return {
        "kind": model.kind,
        "lookback": inputs.lookback,
        "horizon": inputs.horizon,
        "quantiles": list(model.quantiles),
        "inputs": {
            name: [{"name": column.name, "role": column.role, "categories": column.categories} for column in getattr(inputs, name)]
            for name in inputs.shapes(1)
        },
        **({"left_out": list(inputs.left_out)} if inputs.left_out else {}),
        **({"kept_float": list(model.kept_float)} if model.kept_float else {}),
    }


def _versions() -> dict[str, str | None]:
    """The tools that made the file."""
    return {name: installed(name) for name in ("tftq", "torch", "onnx", "onnxscript")}


def read_metadata(model: onnx.ModelProto | Path | str) -> dict[str, object]:
    """What `build_graph` noted in a model, or in a file of one."""
    graph = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    return next(json.loads(entry.value) for entry in graph.metadata_props if entry.key == METADATA_KEY)


def _own_zero_points(graph: onnx.GraphProto) -> None:
    """Give each dequantizer of a weight constants of its own: where the runtime rewrites weights as UINT8, it fails on shared ones.

    Of equal small ones the tracer leaves one, under the name of the first.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    dequantized: set[str] = set()
    for part in every_graph(graph):
        for node in part.node:
            if node.op_type == "DequantizeLinear" and constants[node.input[2]].dims:  # one a channel, as only weights and biases have
                weight = own = node.input[0]
                while own in dequantized:
                    own += "_"
                dequantized.add(own)
                if own != weight and weight in constants:  # one that is unpacked is no constant before the runtime has made it one
                    graph.initializer.add().CopyFrom(constants[weight])
                    graph.initializer[-1].name = node.input[0] = own
                graph.initializer.add().CopyFrom(constants[node.input[2]])
                graph.initializer[-1].name = node.input[2] = f"{own}.zero_point"
    used = {name for part in every_graph(graph) for node in part.node for name in node.input}
    for name in constants.keys() - used:
        graph.initializer.remove(constants[name])


def _strip(graph: onnx.ModelProto) -> None:
    """Drop the tracer's notes: they are a third of a small file, and hold paths of the machine."""
    graph.doc_string = ""
    for whole in every_graph(graph.graph):
        del whole.value_info[:]
        for part in (*whole.node, *whole.initializer, *whole.input, *whole.output, whole):
            part.doc_string = ""
            del part.metadata_props[:]


def _describe(graph: onnx.ModelProto, metadata: Mapping[str, object]) -> None:
    del graph.metadata_props[:]
    graph.metadata_props.add(key=METADATA_KEY, value=json.dumps(metadata, sort_keys=True))
