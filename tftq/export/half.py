"""The network as a GPU will compute it: products in FP16, between FP32 neighbours, of weights that are stored as FP16 or INT8.

ONNX Runtime's CUDA provider has no kernels for products of integers in QDQ, and runs every operator that is written here.
"""

from functools import partial

import torch
from torch import Tensor, nn

from tftq.export.deploy import replaced
from tftq.export.layers import DenseTable, FloatLinear, constant, dequantized, onnx_operator, scattered
from tftq.export.lstm import OnnxLstm
from tftq.model.curves import TableCurves
from tftq.model.forecaster import Forecaster
from tftq.model.scaling import InputScaling
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable
from tftq.quant.quantizers import WeightQuantizer

HALF = torch.float16


class _IntegerWeight:
    """A weight [outputs, inputs] stored as INT8, a scale for each output, and its product in FP16.

    A Gemm by the transposed weight, since ONNX Runtime makes a `MatMulNBits` of a MatMul or of another Gemm behind a dequantizer, which
    rounds activations too on a CPU.
    """

    def store(self, weight: Tensor, quantizer: WeightQuantizer) -> None:
        """Copy the weight from a calibrated layer."""
        scale = quantizer.scale
        integers = quantizer.integers(weight)
        self.integers = constant(integers if quantizer.axis == 0 else integers.T.contiguous())
        self.scale = constant(scale.to(HALF))
        self.zero = constant(torch.zeros_like(scale, dtype=torch.int8))

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Args: x [rows, inputs], FP16; bias [outputs], FP16. Returns: [rows, outputs], FP16."""
        weight = dequantized(self.integers, self.scale, self.zero, axis=0)
        operands = (x, weight) if bias is None else (x, weight, bias)
        return onnx_operator("Gemm", operands, (x.shape[0], self.integers.shape[0]), HALF, transB=1)


class HalfIntegerLinear(_IntegerWeight, nn.Module):
    """A `FloatLinear` in FP16, its weight stored as INT8; its input is not rounded.

    Args:
        linear: the layer with its quantizers, calibrated.
    """

    def __init__(self, linear: FakeQuantizedLinear) -> None:
        super().__init__()
        self.store(linear.weight, linear.weight_quantizer)
        self.bias = None if linear.bias is None else constant(linear.bias.to(HALF))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs], FP32. Returns: [..., outputs], FP32."""
        product = self.product(x.flatten(0, -2).to(HALF), self.bias).float()
        return product.unflatten(0, x.shape[:-1])


class HalfIntegerTable(_IntegerWeight, DenseTable):
    """A `DenseTable` in FP16, its values stored as INT8; the shares are not rounded.

    Args:
        curves: the table with its quantizer, calibrated.
    """

    def __init__(self, curves: FakeQuantizedTable) -> None:
        super().__init__(curves, HALF)
        del self.values
        self.store(curves.values, curves.weight_quantizer)

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        index, share = self.grid.locate(x, weights)
        return self.product(scattered(index, share.to(HALF), self.integers.shape[1])).float()


def deploy_half(model: Forecaster) -> Forecaster:
    """Copy a model for tracing, see `tftq.export.deploy.deploy`, for a GPU.

    Args:
        model: a float table model, or a prepared and calibrated one, whose weights then stay INT8.
    """
    deployed = replaced(
        model,
        {
            nn.Linear: partial(FloatLinear, dtype=HALF),
            FakeQuantizedLinear: HalfIntegerLinear,
            TableCurves: partial(DenseTable, dtype=HALF),
            FakeQuantizedTable: HalfIntegerTable,
            nn.LSTM: partial(OnnxLstm, dtype=HALF),
            FakeQuantizedLstm: partial(OnnxLstm, dtype=HALF),
            DynamicLstm: partial(OnnxLstm, dtype=HALF),
        },
    )
    for module in deployed.modules():
        if isinstance(module, InputScaling):
            module.asinh = asinh
    return deployed


def asinh(x: Tensor) -> Tensor:
    """Compute asinh by other operators: the CUDA provider has no kernel for Asinh, and would copy to the CPU and back for it."""
    return x.sign() * (x.abs() + (x * x + 1).sqrt()).log()
