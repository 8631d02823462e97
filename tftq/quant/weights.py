"""A float model that computes with a prepared model's rounded weights, its activations unrounded."""

import copy
from typing import TypeVar

import torch
from torch import nn

from tftq.model.curves import TableCurves
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable
from tftq.quant.prepare import swap_modules

Model = TypeVar("Model", bound=nn.Module)


def with_rounded_weights(model: Model) -> Model:
    """Return a float copy of a prepared model: each weight is its integers times its scale, and no activation or bias is rounded.

    Args:
        model: prepared, its weights' ranges known; it stays unchanged.

    Returns:
        The copy, in eval mode.
    """
    rounded = copy.deepcopy(model).eval()  # where quantizers compute as they will be deployed
    swap_modules(rounded, {FakeQuantizedLinear: _linear, FakeQuantizedTable: _table, FakeQuantizedLstm: _lstm, DynamicLstm: _lstm})
    return rounded


@torch.no_grad()
def _linear(linear: FakeQuantizedLinear) -> nn.Linear:
    outputs, inputs = linear.weight.shape
    plain = nn.Linear(inputs, outputs, bias=linear.bias is not None)
    plain.weight = nn.Parameter(linear.weight_quantizer(linear.weight))
    plain.bias = linear.bias
    return plain


@torch.no_grad()
def _table(curves: FakeQuantizedTable) -> TableCurves:
    return TableCurves(curves.grid, curves.weight_quantizer(curves.values))


@torch.no_grad()
def _lstm(lstm: FakeQuantizedLstm) -> nn.LSTM:
    for name, quantizer in lstm.weight_quantizers.items():
        weight = getattr(lstm.lstm, name)
        weight.copy_(quantizer(weight))
    return lstm.lstm
