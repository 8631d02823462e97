"""Convert a forecaster to ONNX bytes: trace, name and describe it, and strip the tracer's notes."""

from collections.abc import Iterable, Mapping

import onnx
from torch import nn

from tftq.export.deploy import compute_by_window, deploy
from tftq.export.half import deploy_half
from tftq.export.rewrite.four_bits import write_four_bits
from tftq.export.rewrite.lstm_weights import load_as_floats
from tftq.export.rewrite.scan import write_scans
from tftq.export.rewrite.strip import strip
from tftq.export.rewrite.zero_points import own_zero_points
from tftq.export.tracing import trace
from tftq.io import installed
from tftq.model.forecaster import Forecaster
from tftq.spec.formats import FORMATS, Format
from tftq.spec.inputs import Column
from tftq.spec.metadata import METADATA_KEY, ForecasterMetadata, InputColumn, Metadata, Origin

EXAMPLE_BATCH = 2  # a batch of one would be taken for a constant
PASSES = (write_scans, write_four_bits, load_as_floats, own_zero_points, strip)  # each changes a model in place, in this order
PRICE = "last close * exp(forecast)"  # of forecasts of bars, which are log returns


def build_forecaster(model: Forecaster, format: Format, target: str, origin: Origin | None = None) -> bytes:
    """Build an ONNX model: raw columns in, `forecast` [batch, horizon, quantiles] in the target's unit out, any batch size.

    Args:
        model: a Mamba-2, or a TFT in the table form; where prepared and calibrated, its weights are
            stored as INT8, and the products are of integers.
        format: its name; those for a GPU compute products in FP16, of weights in INT8 too.
        target: the target's unit.
        origin: its run and data; None where no run made it.

    Returns:
        The serialized model; the same for the same model.
    """
    if FORMATS[format].for_gpu:
        deployed = deploy_half(model)
    else:
        deployed = deploy(model)
        compute_by_window(deployed)  # not for a GPU, where few and large products are fast
    return build_graph(deployed, model.inputs.shapes(EXAMPLE_BATCH), ("forecast",), describe(model, format, target, origin))


def build_graph(network: nn.Module, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[str, ...], metadata: Metadata) -> bytes:
    """Build an ONNX model of any network from `deploy`, or built on one.

    Args:
        network: in eval mode.
        shapes: its inputs by name and in order, each of a batch of `EXAMPLE_BATCH`.
        outputs: the names of its outputs, in order.
        metadata: of the file.

    Returns:
        The serialized model; the same for the same network.
    """
    model = trace(network.cpu(), shapes, outputs)
    for rewrite in PASSES:
        rewrite(model)
    model.metadata_props.add(key=METADATA_KEY, value=metadata.to_json())
    onnx.checker.check_model(model, full_check=False)
    return model.SerializeToString(deterministic=True)


def describe(model: Forecaster, format: Format, target: str, origin: Origin | None) -> ForecasterMetadata:
    """Build the metadata of a forecaster's file.

    Args: see `build_forecaster`.
    """
    inputs = model.inputs
    return ForecasterMetadata(
        model=model.kind,
        format=format,
        oldest_runtime=FORMATS[format].oldest_runtime,
        lookback=inputs.lookback,
        inputs={name: columns_of(getattr(inputs, name)) for name in inputs.shapes(1)},
        versions=tool_versions(),
        origin=origin,
        horizon=inputs.horizon,
        quantiles=tuple(model.quantiles),
        target=target,
        price=PRICE if origin is not None and origin.of_bars else None,
        left_out=tuple(inputs.left_out),
        kept_float=tuple(model.kept_float),
    )


def columns_of(columns: Iterable[Column]) -> tuple[InputColumn, ...]:
    """Describe the columns of an input for a file's metadata."""
    return tuple(InputColumn(column.name, column.role, column.categories) for column in columns)


def tool_versions() -> dict[str, str | None]:
    """Return the versions of the packages that make a file."""
    return {name: installed(name) for name in ("tftq", "torch", "onnx", "onnxscript")}
