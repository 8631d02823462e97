"""The products as the runtime will compute them: each written as the ONNX operators that every runtime fuses.

These modules are only ever traced by the exporter. The patterns are those that ONNX Runtime's CPU provider turns into
integer kernels (docs/export.md), and they are standard QDQ, so that other runtimes read them too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tftq.export.rewrite.four_bits import unpacked, unpacked_curves
from tftq.export.rewrite.scan import each_window
from tftq.model.curves import TableCurves
from tftq.quant.integers import INT4, INT32, quantize
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedTable
from tftq.quant.quantizers import CurveQuantizer


def onnx_operator(name: str, inputs: tuple[Tensor | None, ...], shape: tuple[int, ...], dtype: torch.dtype, **attributes: Any) -> Tensor:
    """Trace one ONNX operator, which the exporter writes unchanged."""
    return torch.onnx.ops.symbolic(name, inputs, attributes, dtype=dtype, shape=shape)


def quantized(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Trace QuantizeLinear to UINT8."""
    return onnx_operator("QuantizeLinear", (x, scale, zero_point), x.shape, torch.uint8)


def dequantized(x: Tensor, scale: Tensor, zero_point: Tensor, *, axis: int | None = None) -> Tensor:
    """Trace DequantizeLinear to the scale's type; without a zero point of its own, a constant would not be fused."""
    attributes = {} if axis is None else {"axis": axis}
    return onnx_operator("DequantizeLinear", (x, scale, zero_point), x.shape, scale.dtype, **attributes)


class IntegerLinear(nn.Module):
    """UINT8 input, INT8 weight per output channel, stored as that or INT4, INT32 bias: a product between dequantizers, which runtimes fuse.

    Args:
        linear: the layer with its quantizers, calibrated.
    """

    def __init__(self, linear: FakeQuantizedLinear) -> None:
        super().__init__()
        quantizer = linear.weight_quantizer
        self.weight = constant(quantizer.integers(linear.weight))
        self.four_bits = quantizer.kind == INT4
        self.weight_scale = constant(quantizer.scale)
        self.weight_zero = constant(torch.zeros_like(quantizer.scale, dtype=torch.int8))
        self.input_scale = constant(linear.input_quantizer.scale)
        self.input_zero = constant(linear.input_quantizer.zero_point.to(torch.uint8))
        self.outputs = len(quantizer.scale)
        self.has_bias = linear.bias is not None
        if linear.bias is not None:
            scale = linear.bias_scale()
            self.bias = constant(quantize(linear.bias, scale, torch.zeros_like(quantizer.zero_point), INT32))
            self.bias_scale = constant(scale)
            self.bias_zero = constant(torch.zeros_like(scale, dtype=torch.int32))
        else:
            self.weight = constant(self.weight.T.contiguous())  # [inputs, outputs], as MatMul expects

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs]. Returns: [..., outputs]."""
        if not self.has_bias:  # OpenVINO fails where a Gemm without bias is reshaped
            operands = self._input(x), self._weight(axis=1)
            return onnx_operator("MatMul", operands, (*x.shape[:-1], self.outputs), torch.float32)
        rows = x.flatten(0, -2)  # a product of more dimensions would not be fused with its bias
        weight = self._weight(axis=0)
        bias = dequantized(self.bias, self.bias_scale, self.bias_zero, axis=0)
        product = onnx_operator("Gemm", (self._input(rows), weight, bias), (rows.shape[0], self.outputs), torch.float32, transB=1)
        return product.unflatten(0, x.shape[:-1])

    def _input(self, x: Tensor) -> Tensor:
        return dequantized(quantized(x, self.input_scale, self.input_zero), self.input_scale, self.input_zero)

    def _weight(self, *, axis: int) -> Tensor:
        weight = unpacked(self.weight) if self.four_bits else self.weight
        return dequantized(weight, self.weight_scale, self.weight_zero, axis=axis)


class DenseTable(TableCurves):
    """A table as one dense product: each row's shares scattered among zeros, times all the values.

    Args:
        curves: the float table.
        dtype: the product's type.

    Attributes:
        window: rows of a window, where one window is to be computed after another; the operand of a whole batch is large.
    """

    window: int | None = None

    def __init__(self, curves: TableCurves, dtype: torch.dtype) -> None:
        super().__init__(curves.grid, curves.values.to(dtype))

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """Mix the curves, see `TableCurves.mix`."""
        if self.window is None:
            return self._product(x, weights)
        windows = [rows.unflatten(0, (-1, self.window)) for rows in (x, weights)]  # [batch, window, variables] each
        return each_window(self._product, *windows).flatten(0, 1)

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        index, share = self.grid.locate(x, weights)
        dense = scattered(index, share.to(self.values.dtype), self.values.shape[0])
        return (dense @ self.values).float()


class IntegerTable(DenseTable):
    """A `DenseTable` with UINT8 shares, scattered as bytes, a quarter of the memory, and INT8 values, stored as that or in four bits.

    Args:
        curves: the table with its quantizer, calibrated.
    """

    def __init__(self, curves: FakeQuantizedTable) -> None:
        super().__init__(curves, torch.float32)
        quantizer = curves.weight_quantizer
        del self.values
        if isinstance(quantizer, CurveQuantizer):
            self.integers = constant(quantizer.offsets(curves.values))
            self.base, self.step = constant(quantizer.base.to(torch.int8)), constant(quantizer.step.to(torch.int8))
        else:
            self.integers = constant(quantizer.integers(curves.values))
        self.four_bits = isinstance(quantizer, CurveQuantizer)
        self.scale = constant(quantizer.scale)
        self.zero = constant(torch.zeros_like(quantizer.scale, dtype=torch.int8))
        self.share_scale = constant(curves.share_scale)
        self.share_zero = constant(torch.tensor(0, dtype=torch.uint8))

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        index, share = self.grid.locate(x, weights)
        largest = share.amax(dim=1, keepdim=True)  # [rows, 1]
        dense = scattered(index, quantized(share / largest, self.share_scale, self.share_zero), self.integers.shape[0])
        integers = unpacked_curves(self.integers, self.base, self.step, self.grid.counts) if self.four_bits else self.integers
        operands = dequantized(dense, self.share_scale, self.share_zero), dequantized(integers, self.scale, self.zero, axis=1)
        return onnx_operator("MatMul", operands, (x.shape[0], self.integers.shape[1]), torch.float32) * largest


def scattered(index: Tensor, share: Tensor, rows: int) -> Tensor:
    """Scatter the shares among zeros [rows of x, table rows]."""
    return torch.zeros(index.shape[0], rows, dtype=share.dtype, device=share.device).scatter(1, index.long(), share)


class FloatLinear(nn.Module):
    """A linear layer in floating point, between FP32 neighbours; its weight keeps its name, by which the census finds it.

    Args:
        linear: the layer.
        dtype: the type of its stored weight and its product.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = constant(linear.weight.T.contiguous().to(dtype))  # [inputs, outputs]; the exporter renames what it transposes
        self.bias = None if linear.bias is None else constant(linear.bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs], FP32. Returns: [..., outputs], FP32."""
        product = x.to(self.weight.dtype) @ self.weight
        return (product if self.bias is None else product + self.bias).float()


def constant(x: Tensor) -> nn.Buffer:
    """Copy a tensor, without gradient."""
    return nn.Buffer(x.detach().clone())
