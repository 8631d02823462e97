"""An LSTM that multiplies integers, in the arithmetic of ONNX Runtime's DynamicQuantizeLSTM for one window at a time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.quant.fake_quantize import fake_quantize
from tftq.quant.integers import UINT8
from tftq.quant.layers import FakeQuantizedLstm


class DynamicLstm(FakeQuantizedLstm):
    """An LSTM whose weights are INT8 and whose inputs and states are rounded to UINT8 over their current range.

    The input of a layer has one range for all steps of a window, the state one at each step. While weights are not rounded, nothing is.

    Args:
        lstm: the float module, without dropout between its layers; its Parameters move over as the same objects.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__(lstm)
        assert not lstm.dropout, "no dropout between layers is computed here"

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM; arguments and results are those of `nn.LSTM` with `batch_first`."""
        if not self.weight_quantizers["weight_ih_l0"].active:
            return super().forward(x, state)
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.shape[0], self.lstm.hidden_size)
            state = (zeros, zeros)
        hiddens, cells = [], []
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            for layer in range(self.num_layers):
                x, hidden, cell = self._layer(x, state[0][layer].float(), state[1][layer].float(), layer)
                hiddens.append(hidden)
                cells.append(cell)
        return x, (torch.stack(hiddens), torch.stack(cells))

    def _layer(self, x: Tensor, hidden: Tensor, cell: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Args: x [batch, time, inputs]; hidden, cell [batch, hidden]. Returns: [batch, time, hidden], and both states in the end."""
        input_weight, state_weight = (
            self.weight_quantizers[name](getattr(self.lstm, name)) for name in (f"weight_ih_l{layer}", f"weight_hh_l{layer}")
        )
        bias = getattr(self.lstm, f"bias_ih_l{layer}") + getattr(self.lstm, f"bias_hh_l{layer}")
        from_input = F.linear(dynamically_rounded(x), input_weight, bias)  # [batch, time, 4 * hidden]
        outputs = []
        for gates in from_input.unbind(1):
            gates = gates + F.linear(dynamically_rounded(hidden), state_weight)
            enter, forget, candidate, leave = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden, cell


def dynamically_rounded(x: Tensor) -> Tensor:
    """Round each window to 255 steps over its own range, zero included, as the runtime does, without a floor for the step.

    Args: x [batch, ...], float32. Returns: x's shape.
    """
    flat = x.detach().flatten(1)
    low, high = flat.amin(1).clamp(max=0), flat.amax(1).clamp(min=0)
    scale = (high - low) / UINT8.high
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)  # of a window of zeros
    zero_point = torch.round(-low / scale)
    per_window = (-1, *[1] * (x.ndim - 1))
    return fake_quantize(x, scale.reshape(per_window), zero_point.reshape(per_window), UINT8)
