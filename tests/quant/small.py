"""Windows, batches and quantized models over the small model's columns, for the tests of quant and export."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tests.model.small import example, small_model
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import LstmStorage, Model, prepared_copy
from tftq.spec.formats import WeightStorage
from tftq.spec.inputs import Inputs


def small_batch(inputs: Inputs, count: int, *, seed: int = 1, times: float = 1.0) -> Batch:
    """Raw windows whose target follows the last price; real values `times` as large."""
    tensors = dict(zip(inputs.shapes(count), example(inputs, count, seed), strict=True))
    for name, x in tensors.items():
        real = torch.tensor([column.categories == 0 for column in getattr(inputs, name)])
        tensors[name] = torch.where(real, x * times, x)
    target = 10 + tensors["history"][:, -1, :1] + torch.arange(inputs.horizon)
    return Batch(tensors["history"], tensors["future"], tensors.get("static"), target)


class SmallWindows:
    """A batch as windows that can be asked for."""

    target_unit = "points"

    def __init__(self, batch: Batch) -> None:
        self.whole = batch

    def __len__(self) -> int:
        return len(self.whole.history)

    def batch(self, indices: Tensor | Sequence[int]) -> Batch:
        return part(self.whole, torch.as_tensor(indices))


def part(batch: Batch, indices: Tensor | slice) -> Batch:
    static = None if batch.static is None else batch.static[indices]
    return Batch(batch.history[indices], batch.future[indices], static, batch.target[indices])


def small_table(*, static: bool = True, dropout: float = 0.1, lstm_layers: int = 2, seed: int = 0) -> TemporalFusionTransformer:
    """The small model in the table form, untrained, in eval mode."""
    table, _ = tabulate(small_model(static=static, lstm_layers=lstm_layers, seed=seed))
    for module in table.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        elif isinstance(module, nn.LSTM):
            module.dropout = dropout if lstm_layers > 1 else 0.0
    return table


def calibrated(
    table: Model,
    lstm: LstmStorage = "int8",
    *,
    weights: WeightStorage = "int8",
    windows: int = 64,
    keep_float: Sequence[str] = (),
) -> Model:
    """A copy in eval mode that computes as the integers will, calibrated on windows of its own."""
    prepared = prepared_copy(table, lstm=lstm, weights=weights, keep_float=keep_float)
    calibrate(prepared, [small_batch(table.inputs, windows, seed=5)])
    return prepared.eval()
