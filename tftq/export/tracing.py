"""Trace a network to its ONNX graph; it takes seconds, so networks that differ only in their tensors' values are traced once."""

import io
import logging
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx
import onnxscript.optimizer
import torch
from onnx import numpy_helper
from torch import Tensor, nn

OPSET = 21
_graphs: dict[bytes, bytes] = {}  # the inputs of tracing -> the graph without the values of the network's tensors


def trace(network: nn.Module, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[str, ...]) -> onnx.ModelProto:
    """Trace a network to its graph, with its tensors as initializers, optimised as the exporter does.

    Args:
        network: in eval mode, on the CPU.
        shapes: its inputs, arguments of its `forward` by name and in order, each of a batch of at least two, which the graph leaves open.
        outputs: the names of its outputs, in order.
    """
    key = pickle.dumps((shapes, outputs)) + _structure(network)
    if key not in _graphs:
        _graphs[key] = _without_numbers(_export(network, shapes, outputs), network)
    graph = onnx.load_from_string(_graphs[key])
    tensors = _tensors(network)
    for initializer in graph.graph.initializer:
        if initializer.name in tensors:
            initializer.CopyFrom(numpy_helper.from_array(tensors[initializer.name].detach().numpy(), initializer.name))
    return onnxscript.optimizer.optimize(graph)


def _structure(network: nn.Module) -> bytes:
    """Describe everything that tracing a network depends on, its parameters and buffers only by type and shape."""
    tensors = {id(x): (i, x.dtype, tuple(x.shape)) for i, x in enumerate([*network.parameters(), *network.buffers()])}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: object) -> tuple[int, torch.dtype, tuple[int, ...]] | None:
            return tensors.get(id(part))

    pickled = io.BytesIO()
    Pickler(pickled).dump(network)
    return pickled.getvalue()


def _export(network: nn.Module, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[str, ...]) -> onnx.ModelProto:
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            network,
            kwargs={name: torch.zeros(shape) for name, shape in shapes.items()},
            input_names=list(shapes),
            output_names=outputs,
            dynamic_shapes={name: {0: batch} for name in shapes},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
            optimize=False,  # it folds and merges constants by their values
        )
    assert program is not None
    return program.model_proto


def _without_numbers(graph: onnx.ModelProto, network: nn.Module) -> bytes:
    tensors = _tensors(network)
    for initializer in graph.graph.initializer:
        if initializer.name in tensors:
            initializer.ClearField("raw_data")
    return graph.SerializeToString()


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, under every name."""
    return {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers(remove_duplicate=False))}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's log; its errors are raised."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
