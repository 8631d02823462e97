"""The layers of a prepared model: the float ones, sharing their parameters, with quantizers on the inputs of the products."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.errors import QuantizationError
from tftq.model.curves import TableCurves
from tftq.model.grid import table_product
from tftq.quant.fake_quantize import fake_quantize
from tftq.quant.integers import INT8, INT32, UINT8, IntegerType
from tftq.quant.quantizers import ActivationQuantizer, CurveQuantizer, WeightQuantizer, quantizers
from tftq.spec.formats import WeightStorage


class FakeQuantizedLinear(nn.Module):
    """A linear layer whose input is UINT8, weight INT8 or INT4 per output channel and bias INT32.

    Args:
        linear: the float layer; its Parameters move over as the same objects.
        kind: the weight's integer type.
    """

    def __init__(self, linear: nn.Linear, kind: IntegerType = INT8) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.input_quantizer = ActivationQuantizer()
        self.weight_quantizer = WeightQuantizer(linear.out_features, axis=0, kind=kind)

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., inputs]. Returns: [..., outputs]."""
        x, weight = self.input_quantizer(x), self.weight_quantizer(self.weight)
        bias: Tensor | None = self.bias
        if not self.weight_quantizer.active:
            return F.linear(x, weight, bias)
        if bias is not None:
            bias = fake_quantize(bias, self.bias_scale(), torch.zeros_like(self.weight_quantizer.zero_point), INT32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, weight, bias)

    def check(self, name: str) -> None:
        """Raise QuantizationError, naming the layer, if the bias does not fit into the 32 bits of the product."""
        if self.bias is not None and bool(((self.bias / self.bias_scale()).abs() > INT32.high).any()):
            raise QuantizationError(
                f"{name}: its bias is more than 2^31 steps of its product: its input hardly ever leaves zero; name it in quant.keep_float"
            )

    def bias_scale(self) -> Tensor:
        """Return the scale of the product's accumulator [outputs]."""
        return self.input_quantizer.scale * self.weight_quantizer.scale


class FakeQuantizedTable(TableCurves):
    """A table whose values are INT8 per output channel, stored as that or in four bits, and multiplied by UINT8 shares.

    The shares of a row are divided by the largest of them first, so that their range is [0, 1] by construction.

    Args:
        curves: the float table; its Parameter moves over as the same object.
        weights: the type its values are stored in.
    """

    share_scale: Tensor
    share_zero_point: Tensor

    def __init__(self, curves: TableCurves, weights: WeightStorage = "int8") -> None:
        super().__init__(curves.grid, curves.values)
        self.values = curves.values
        channels = self.values.shape[1]
        self.weight_quantizer = CurveQuantizer(self.grid.counts, channels) if weights == "int4" else WeightQuantizer(channels, axis=1)
        self.shares = nn.Identity()  # the inputs of the product, for hooks to observe
        self.register_buffer("share_scale", torch.tensor(1 / UINT8.high), persistent=False)
        self.register_buffer("share_zero_point", torch.tensor(0, dtype=torch.int32), persistent=False)

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        """Multiply, through the integers where active."""
        table = self.weight_quantizer(self.values)
        index, share = self.grid.locate(x, weights)
        share = self.shares(share)
        if not self.weight_quantizer.active:
            return table_product(index, share, table)
        # Every other entry of the row is an exact zero, so rounding the shares rounds the whole row.
        share, largest = self._over_largest(share)
        return table_product(index, share, table) * largest

    def rounded_shares(self, share: Tensor) -> Tensor:
        """Round shares [rows, entries] to what the integers represent, whatever the switches; float32, the same shape."""
        rounded, largest = self._over_largest(share)
        return rounded * largest

    def _over_largest(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """Divide shares by the largest of their row and round; returns them and the divisors [rows, 1]."""
        largest = share.detach().amax(dim=1, keepdim=True)  # [rows, 1]
        return fake_quantize(share / largest, self.share_scale, self.share_zero_point, UINT8), largest


class FakeQuantizedLstm(nn.Module):
    """An LSTM that computes in floating point with weights that are stored in INT8, a scale for each gate's output.

    Args:
        lstm: the float module; its Parameters move over as the same objects.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm
        names = [name for name, _ in lstm.named_parameters() if name.startswith("weight")]
        self.weight_quantizers = nn.ModuleDict({name: WeightQuantizer(getattr(lstm, name).shape[0], axis=0) for name in names})

    def weight_quantizer(self, name: str) -> WeightQuantizer:
        """Return the quantizer of one of the LSTM's weights."""
        quantizer = self.weight_quantizers[name]
        assert isinstance(quantizer, WeightQuantizer)
        return quantizer

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the LSTM."""
        return self.lstm.num_layers

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM; arguments and results are those of `nn.LSTM` with `batch_first`."""
        lstm = self.lstm
        if state is None:
            zeros = torch.zeros(lstm.num_layers, x.shape[0], lstm.hidden_size, device=x.device, dtype=x.dtype)
            state = (zeros, zeros)
        weights = [
            self.weight_quantizers[name](parameter) if name in self.weight_quantizers else parameter
            for name, parameter in lstm.named_parameters()
        ]
        output, hidden, cell = torch.lstm(x, state, weights, True, lstm.num_layers, lstm.dropout, self.training, False, True)
        return output, (hidden, cell)


def quantized_layers(model: nn.Module) -> dict[str, FakeQuantizedLinear | FakeQuantizedTable | FakeQuantizedLstm]:
    """Return the quantized layers of a prepared model, by name and in the model's order."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, FakeQuantizedLinear | FakeQuantizedTable | FakeQuantizedLstm)
    }


def check_ranges(model: nn.Module) -> None:
    """Raise QuantizationError naming the first tensor of a prepared model that its integers cannot hold."""
    for name, quantizer in quantizers(model):
        quantizer.check(name)
    for name, module in model.named_modules():
        if isinstance(module, FakeQuantizedLinear):
            module.check(name)
