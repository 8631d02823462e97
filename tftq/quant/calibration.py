"""Streaming calibration: each layer's range from one pass over training windows, in memory that does not grow."""

from collections.abc import Iterable

import torch
from torch import nn

from tftq.data.columns import Batch
from tftq.errors import QuantizationError
from tftq.quant.fake_quantize import ActivationQuantizer, quantizers
from tftq.quant.modules import check_ranges


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Give every quantizer the range of what passes through it in the float model, independent of how it is batched.

    Args:
        model: a prepared model; its dropout is off during the pass, and its modes and switches are restored.
        batches: training windows, on the model's device.

    Raises:
        QuantizationError: there is no batch, or an input is not finite, or a range was never observed or is not finite; the first
            such tensor is named.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for _, quantizer in quantizers(model):
        quantizer.train()  # a quantizer in training mode that is not enabled lets floats pass, and learns
        quantizer.observing, quantizer.enabled = True, False
        if isinstance(quantizer, ActivationQuantizer):
            quantizer.low.fill_(torch.inf)
            quantizer.high.fill_(-torch.inf)
            quantizer.averaging = False
    count = 0
    for batch in batches:
        _refuse_not_finite(batch, count)
        model(*batch.inputs)
        count += 1
    for _, quantizer in quantizers(model):
        quantizer.observing = False
        if isinstance(quantizer, ActivationQuantizer):
            quantizer.averaging = True  # from here on, QAT moves the range gently
    for module, training in modes.items():
        module.training = training
    if count == 0:
        raise QuantizationError("calibration got no batch: give at least one training window (quant.calibration_windows)")
    check_ranges(model)


def _refuse_not_finite(batch: Batch, number: int) -> None:
    """Before the model sees it: a knot's index made of NaN would end in an error that says nothing of the input."""
    for name in ("history", "future", "static"):
        tensor = getattr(batch, name)
        if tensor is not None and not bool(tensor.isfinite().all()):
            raise QuantizationError(
                f"calibration: {name} of batch {number} is not finite; only windows without NaN or Inf can be calibrated on"
            )
