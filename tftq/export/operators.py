"""The network as the runtime will compute it: each product written as the ONNX operators that every runtime fuses.

These modules are only ever traced by the exporter. The patterns are those that ONNX Runtime's CPU provider turns into
integer kernels (docs/export.md), and they are standard QDQ, so that other runtimes read them too.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tftq.export.scan import each_window
from tftq.model.curves import TableCurves
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.modules import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable, check_ranges
from tftq.quant.parameters import INT8, INT32, quantize
from tftq.quant.prepare import swap_modules


def onnx_operator(name: str, inputs: tuple[Tensor | None, ...], shape: tuple[int, ...], dtype: torch.dtype, **attributes: Any) -> Tensor:
    """One ONNX operator, for the exporter to write as it stands."""
    return torch.onnx.ops.symbolic(name, inputs, attributes, dtype=dtype, shape=shape)


def quantized(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """QuantizeLinear to UINT8."""
    return onnx_operator("QuantizeLinear", (x, scale, zero_point), x.shape, torch.uint8)


def dequantized(x: Tensor, scale: Tensor, zero_point: Tensor, *, axis: int | None = None) -> Tensor:
    """DequantizeLinear to what the scale is in; without a zero point of its own, a constant would not be fused."""
    attributes = {} if axis is None else {"axis": axis}
    return onnx_operator("DequantizeLinear", (x, scale, zero_point), x.shape, scale.dtype, **attributes)


class IntegerLinear(nn.Module):
    """UINT8 input, INT8 weight per output channel, INT32 bias: a product between dequantizers, which runtimes fuse.

    Args:
        linear: the layer with its quantizers, calibrated.
    """

    def __init__(self, linear: FakeQuantizedLinear) -> None:
        super().__init__()
        quantizer = linear.weight_quantizer
        self.weight = constant(stored(linear.weight, quantizer.along(quantizer.scale)))
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
            self.weight = constant(self.weight.T.contiguous())  # [inputs, outputs], as MatMul wants it

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs]. Returns: [..., outputs]."""
        if not self.has_bias:  # OpenVINO fails where a Gemm without bias is reshaped
            operands = self._input(x), dequantized(self.weight, self.weight_scale, self.weight_zero, axis=1)
            return onnx_operator("MatMul", operands, (*x.shape[:-1], self.outputs), torch.float32)
        rows = x.flatten(0, -2)  # a product of more dimensions would not be fused with its bias
        weight = dequantized(self.weight, self.weight_scale, self.weight_zero, axis=0)
        bias = dequantized(self.bias, self.bias_scale, self.bias_zero, axis=0)
        product = onnx_operator("Gemm", (self._input(rows), weight, bias), (rows.shape[0], self.outputs), torch.float32, transB=1)
        return product.unflatten(0, x.shape[:-1])

    def _input(self, x: Tensor) -> Tensor:
        return dequantized(quantized(x, self.input_scale, self.input_zero), self.input_scale, self.input_zero)


class DenseTable(TableCurves):
    """A table as one dense product: each row's shares scattered among zeros, times all the values.

    Args:
        curves: the float table.
        dtype: what the product is computed in.

    Attributes:
        window: rows of a window, where one window is to be computed after another; the operand of a whole batch is large.
    """

    window: int | None = None

    def __init__(self, curves: TableCurves, dtype: torch.dtype) -> None:
        super().__init__(curves.grid, curves.values.to(dtype))

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """As `TableCurves.mix`."""
        if self.window is None:
            return self._product(x, weights)
        windows = [rows.unflatten(0, (-1, self.window)) for rows in (x, weights)]  # [batch, window, variables] each
        return each_window(self._product, *windows).flatten(0, 1)

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        index, share = self.grid.locate(x, weights)
        dense = scattered(index, share.to(self.values.dtype), self.values.shape[0])
        return (dense @ self.values).float()


class IntegerTable(DenseTable):
    """As `DenseTable`, with UINT8 shares and INT8 values: scattered as bytes, a quarter of the memory.

    Args:
        curves: the table with its quantizer, calibrated.
    """

    def __init__(self, curves: FakeQuantizedTable) -> None:
        super().__init__(curves, torch.float32)
        quantizer = curves.weight_quantizer
        del self.values
        self.integers = constant(stored(curves.values, quantizer.along(quantizer.scale)))
        self.scale = constant(quantizer.scale)
        self.zero = constant(torch.zeros_like(quantizer.scale, dtype=torch.int8))
        self.share_scale = constant(curves.share_scale)
        self.share_zero = constant(torch.tensor(0, dtype=torch.uint8))

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        index, share = self.grid.locate(x, weights)
        largest = share.amax(dim=1, keepdim=True)  # [rows, 1]
        dense = scattered(index, quantized(share / largest, self.share_scale, self.share_zero), self.integers.shape[0])
        operands = dequantized(dense, self.share_scale, self.share_zero), dequantized(self.integers, self.scale, self.zero, axis=1)
        return onnx_operator("MatMul", operands, (x.shape[0], self.integers.shape[1]), torch.float32) * largest


def scattered(index: Tensor, share: Tensor, rows: int) -> Tensor:
    """The shares at their places among zeros [rows of x, table rows]."""
    return torch.zeros(index.shape[0], rows, dtype=share.dtype, device=share.device).scatter(1, index.long(), share)


class FloatLinear(nn.Module):
    """A linear layer in floating point, between FP32 neighbours; its weight keeps its name, by which the census knows it.

    Args:
        linear: the layer.
        dtype: what its weight is stored and its product computed in.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = constant(linear.weight.T.contiguous().to(dtype))  # [inputs, outputs]; the exporter renames what it has to transpose
        self.bias = None if linear.bias is None else constant(linear.bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs], FP32. Returns: [..., outputs], FP32."""
        product = x.to(self.weight.dtype) @ self.weight
        return (product if self.bias is None else product + self.bias).float()


class OnnxLstm(nn.Module):
    """One ONNX LSTM operator a layer, its weights stored as FP32, FP16 or, behind a dequantizer, INT8.

    Args:
        lstm: the float module, or the one whose weights are quantized.
        dtype: what the operator computes in.
    """

    @torch.no_grad()
    def __init__(self, lstm: nn.LSTM | FakeQuantizedLstm, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        source = lstm.lstm if isinstance(lstm, FakeQuantizedLstm) else lstm
        self.num_layers, self.hidden_size = source.num_layers, source.hidden_size
        for layer in range(self.num_layers):
            for kind in ("ih", "hh"):
                name = f"weight_{kind}_l{layer}"
                weight = getattr(source, name)
                if isinstance(lstm, FakeQuantizedLstm):
                    scale = lstm.weight_scale(name)
                    weight = stored(weight, scale[:, None])
                    self.register_buffer(f"{kind}_scale_{layer}", _gates(scale).to(dtype))
                    self.register_buffer(f"{kind}_zero_{layer}", torch.zeros_like(scale, dtype=torch.int8))
                else:
                    weight = weight.to(dtype)
                self.register_buffer(f"{kind}_{layer}", _gates(weight)[None])  # [1, 4 * hidden, inputs]
            biases = [_gates(getattr(source, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
            self.register_buffer(f"bias_{layer}", torch.cat(biases)[None].to(dtype))  # [1, 8 * hidden]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `nn.LSTM` with `batch_first`."""
        x = x.transpose(0, 1).to(self.dtype)  # [time, batch, hidden]
        time, batch = x.shape[:2]
        hiddens, cells = [], []
        for layer in range(self.num_layers):
            start: tuple[Tensor | None, ...] = (None, None)
            if state is not None:
                start = tuple(part[layer : layer + 1].to(self.dtype) for part in state)
            operands = (x, self._weight("ih", layer), self._weight("hh", layer), getattr(self, f"bias_{layer}"), None, *start)
            size = self.hidden_size
            x, hidden, cell = torch.onnx.ops.symbolic_multi_out(
                "LSTM",
                operands,
                {"hidden_size": size},
                dtypes=[self.dtype] * 3,
                shapes=[(time, 1, batch, size), (1, batch, size), (1, batch, size)],
            )
            x = x.squeeze(1)
            hiddens.append(hidden.float())
            cells.append(cell.float())
        return x.transpose(0, 1).float(), (torch.cat(hiddens), torch.cat(cells))

    def _weight(self, kind: str, layer: int) -> Tensor:
        weight = getattr(self, f"{kind}_{layer}")
        if weight.dtype != torch.int8:
            return weight
        return dequantized(weight, getattr(self, f"{kind}_scale_{layer}"), getattr(self, f"{kind}_zero_{layer}"), axis=1)


def deploy(model: TemporalFusionTransformer) -> TemporalFusionTransformer:
    """A copy of a model in the table form, its products replaced by what the runtime computes; only for tracing.

    Args:
        model: a float table model, or a prepared and calibrated one, which comes out in integers.

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
            TableCurves: partial(DenseTable, dtype=torch.float32),
            nn.LSTM: OnnxLstm,
            **({nn.Linear: FloatLinear} if model.kept_float else {}),
        },
    )


def replaced(model: TemporalFusionTransformer, swaps: dict[type[nn.Module], Callable[..., nn.Module]]) -> TemporalFusionTransformer:
    """As `deploy`, with any replacements.

    Args:
        model: in the table form.
        swaps: type of a module -> what makes its replacement of it.
    """
    check_ranges(model)
    deployed = copy.deepcopy(model).eval().requires_grad_(False)
    swap_modules(deployed, swaps)
    return deployed


def compute_by_window(deployed: TemporalFusionTransformer) -> None:
    """Have the tables of what has a time axis computed window after window: memory that hardly grows with the batch.

    Args:
        deployed: of `deploy`; other forms than the table stay as they are.
    """
    inputs = deployed.inputs
    for selection, rows in ((deployed.history_selection, inputs.lookback), (deployed.future_selection, inputs.horizon)):
        curves = getattr(selection, "curves", None)
        if isinstance(curves, DenseTable):
            curves.window = rows


def stored(weight: Tensor, scale: Tensor) -> Tensor:
    """A weight as INT8; the scale broadcasts over it."""
    return quantize(weight, scale, torch.zeros_like(scale, dtype=torch.int32), INT8)


def _gates(x: Tensor) -> Tensor:
    """From torch's order of the gates, input, forget, cell, output, to ONNX's input, output, forget, cell."""
    input_gate, forget, cell, output = x.chunk(4)
    return torch.cat([input_gate, output, forget, cell])


def constant(x: Tensor) -> nn.Buffer:
    """A copy that no training knows of."""
    return nn.Buffer(x.detach().clone())
