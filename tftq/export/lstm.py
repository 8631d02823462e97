"""The LSTM as ONNX operators: the standard one in floating point, or ONNX Runtime's own that multiplies integers."""

import torch
from torch import Tensor, nn

from tftq.export.layers import constant, dequantized
from tftq.export.rewrite.scan import each_window
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLstm

DYNAMIC = "com.microsoft::DynamicQuantizeLSTM"  # of ONNX Runtime's CPU provider alone


class OnnxLstm(nn.Module):
    """One ONNX LSTM operator per layer, its weights stored as FP32, FP16 or, behind a dequantizer (see `rewrite.lstm_weights`), INT8.

    Args:
        lstm: the float module, or the one whose weights are quantized.
        dtype: the operator's type.
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
                    quantizer = lstm.weight_quantizer(name)
                    weight, scale = quantizer.integers(weight), quantizer.scale
                    self.register_buffer(f"{kind}_scale_{layer}", _gates(scale).to(dtype))
                    self.register_buffer(f"{kind}_zero_{layer}", torch.zeros_like(scale, dtype=torch.int8))
                else:
                    weight = weight.to(dtype)
                self.register_buffer(f"{kind}_{layer}", _gates(weight)[None])  # [1, 4 * hidden, inputs]
            biases = [_gates(getattr(source, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
            self.register_buffer(f"bias_{layer}", torch.cat(biases)[None].to(dtype))  # [1, 8 * hidden]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM; arguments and results are those of `nn.LSTM` with `batch_first`."""
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


class OnnxDynamicLstm(nn.Module):
    """One DynamicQuantizeLSTM per layer, in a Scan over the windows.

    The operator rounds its input over the range of its whole batch, and its state over that of all windows that one thread computes.
    Given one window, it depends neither on the others nor on the number of threads.

    Args:
        lstm: the layer with its quantizers.
    """

    @torch.no_grad()
    def __init__(self, lstm: DynamicLstm) -> None:
        super().__init__()
        self.num_layers, self.hidden_size = lstm.num_layers, lstm.lstm.hidden_size
        for layer in range(self.num_layers):
            for kind in ("ih", "hh"):
                name = f"weight_{kind}_l{layer}"
                quantizer = lstm.weight_quantizer(name)
                weight, scale = _gates(quantizer.integers(getattr(lstm.lstm, name))).T, quantizer.scale  # [inputs, 4 * hidden]
                self.register_buffer(f"{kind}_{layer}", weight[None].contiguous())
                self.register_buffer(f"{kind}_scale_{layer}", _gates(scale)[None])
                self.register_buffer(f"{kind}_zero_{layer}", torch.zeros_like(scale, dtype=torch.int8)[None])
            biases = [_gates(getattr(lstm.lstm, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
            self.register_buffer(f"bias_{layer}", constant(torch.cat(biases)[None]))  # [1, 8 * hidden]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM; arguments and results are those of `nn.LSTM` with `batch_first`."""
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.shape[0], self.hidden_size)
            state = (zeros, zeros)
        rows = each_window(self._window, x, *(part.transpose(0, 1) for part in state))
        output, hidden, cell = rows.split([x.shape[1], self.num_layers, self.num_layers], dim=1)
        return output, (hidden.transpose(0, 1), cell.transpose(0, 1))

    def _window(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        """Args: x [time, inputs]; hidden, cell [layers, hidden]. Returns: output and both states in the end, one below the other."""
        size, x = self.hidden_size, x.unsqueeze(1)  # [time, 1, inputs]
        hiddens, cells = [], []
        for layer in range(self.num_layers):
            weights = [getattr(self, f"{kind}_{layer}") for kind in ("ih", "hh")]
            steps = [getattr(self, f"{kind}_{part}_{layer}") for kind in ("ih", "hh") for part in ("scale", "zero")]
            start = [part[layer].reshape(1, 1, size) for part in (hidden, cell)]
            x, last_hidden, last_cell = torch.onnx.ops.symbolic_multi_out(
                DYNAMIC,
                (x, *weights, getattr(self, f"bias_{layer}"), None, *start, None, *steps),
                {"hidden_size": size},
                dtypes=[torch.float32] * 3,
                shapes=[(x.shape[0], 1, 1, size), (1, 1, size), (1, 1, size)],
            )
            x = x.squeeze(1)
            hiddens.append(last_hidden.reshape(1, size))
            cells.append(last_cell.reshape(1, size))
        return torch.cat([x.squeeze(1), *hiddens, *cells])


def _gates(x: Tensor) -> Tensor:
    """Reorder torch's gates, input, forget, cell, output, to ONNX's input, output, forget, cell."""
    input_gate, forget, cell, output = x.chunk(4)
    return torch.cat([input_gate, output, forget, cell])
