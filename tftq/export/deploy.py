"""Convert a model to the network that is traced: each product as the runtime will compute it."""

import copy
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from tftq.export.layers import DenseTable, FloatLinear, IntegerLinear, IntegerTable
from tftq.export.lstm import OnnxDynamicLstm, OnnxLstm
from tftq.model.curves import TableCurves
from tftq.model.forecaster import Forecaster
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable, check_ranges
from tftq.quant.prepare import swap_modules

Model = TypeVar("Model", bound=nn.Module)  # with `kept_float`, as `Forecaster` has it


def deploy(model: Model) -> Model:
    """Copy a model, a TFT in the table form, with its products as the runtime computes them; only for tracing.

    Args:
        model: a float table model, or a prepared and calibrated one, which is converted to integers.

    Returns:
        The copy, in eval mode.

    Raises:
        QuantizationError: a range was never observed.
    """
    return replaced(
        model,
        {
            FakeQuantizedLinear: IntegerLinear,
            FakeQuantizedTable: IntegerTable,
            FakeQuantizedLstm: OnnxLstm,
            DynamicLstm: OnnxDynamicLstm,
            TableCurves: partial(DenseTable, dtype=torch.float32),
            nn.LSTM: OnnxLstm,
            **({nn.Linear: FloatLinear} if model.kept_float else {}),
        },
    )


def replaced(model: Model, swaps: dict[type[nn.Module], Callable[..., nn.Module]]) -> Model:
    """Copy a model for tracing, see `deploy`, with any replacements.

    Args:
        model: a TFT in the table form, or a network that has none.
        swaps: type of a module -> the function that makes its replacement.
    """
    check_ranges(model)
    deployed = copy.deepcopy(model).eval().requires_grad_(False)
    swap_modules(deployed, swaps)
    return deployed


def compute_by_window(deployed: Forecaster) -> None:
    """Compute tables of inputs with a time axis window after window: memory then hardly grows with the batch.

    Args:
        deployed: from `deploy`; parts without tables stay unchanged.
    """
    if not isinstance(deployed, TemporalFusionTransformer):
        return
    inputs = deployed.inputs
    for selection, rows in ((deployed.history_selection, inputs.lookback), (deployed.future_selection, inputs.horizon)):
        curves = getattr(selection, "curves", None)
        if isinstance(curves, DenseTable):
            curves.window = rows
