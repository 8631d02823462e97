"""Streaming calibration: each layer's range from one pass over training windows, in constant memory."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tftq.errors import QuantizationError
from tftq.model.batch import NamedInputs
from tftq.quant.layers import check_ranges
from tftq.quant.observers import Method, Observer, observer_of
from tftq.quant.quantizers import ActivationQuantizer, WeightQuantizer, quantizers, unrounded

PERCENTILE = 99.99


def calibrate(model: nn.Module, batches: Iterable[NamedInputs], method: Method = "minmax", *, percentile: float = PERCENTILE) -> None:
    """Give every quantizer the range of the values that pass through it in the float model, whatever the batch size.

    Args:
        model: a prepared model; its dropout is off during the pass, and its modes and switches are restored.
        batches: training windows, on the model's device.
        method: `minmax` covers everything; `moving_average` the average of the extremes of every 32 windows; `percentile` leaves out
            rare values; `mse` minimises the squared rounding errors.
        percentile: of the method `percentile`, in (50, 100].

    Raises:
        QuantizationError: there is no batch, or an input is not finite, or a range was never observed or is not finite; the first
            such tensor is named.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), calibrating(model, method, percentile=percentile):
            count = 0
            for batch in batches:
                _refuse_not_finite(batch, count)
                model(*batch.named.values())
                count += 1
            if count == 0:
                raise QuantizationError("calibration got no batch: give at least one training window (quant.calibration_windows)")
    finally:
        for module, training in modes.items():
            module.training = training
    check_ranges(model)


@contextmanager
def calibrating(model: nn.Module, method: Method = "minmax", *, percentile: float = PERCENTILE) -> Iterator[None]:
    """Let the quantizers of a model observe what passes through it, unrounded; at exit their ranges cover exactly that.

    Args: see `calibrate`.

    Raises:
        QuantizationError: a quantizer's input was not finite; names the first one in the order of the computation.
    """
    make_observer = observer_of(method, percentile)
    seen: dict[str, _Seen] = {}  # in the order of the computation
    hooks = []
    with unrounded(model):
        try:
            for name, quantizer in quantizers(model):
                if isinstance(quantizer, WeightQuantizer):
                    quantizer.observing = True
                else:
                    quantizer.forget()
                    hooks.append(quantizer.register_forward_pre_hook(_looking(name, seen, make_observer)))
            yield
        finally:
            for hook in hooks:
                hook.remove()
    _refuse_what_passed(seen)
    for name, quantizer in quantizers(model):
        if isinstance(quantizer, ActivationQuantizer) and name in seen:  # the others stay without a range, which is refused
            quantizer.cover(*seen[name].observer.range())


@dataclass
class _Seen:
    """The values that entered one quantizer."""

    observer: Observer
    values: int = 0
    nans: int = 0
    infinities: int = 0


def _looking(name: str, seen: dict[str, _Seen], make_observer: Callable[[], Observer]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach()
        entry = seen.setdefault(name, _Seen(make_observer()))
        entry.values += x.numel()
        if bool(x.isfinite().all()):
            entry.observer.observe(x)
        else:
            entry.nans += int(x.isnan().sum())
            entry.infinities += int(x.isinf().sum())

    return look


def _refuse_what_passed(seen: dict[str, _Seen]) -> None:
    bad = [(name, entry) for name, entry in seen.items() if entry.nans or entry.infinities]
    if bad:
        name, entry = bad[0]
        more = f", as in {len(bad) - 1} after it" if len(bad) > 1 else ""
        raise QuantizationError(
            f"calibration: {entry.nans} NaN and {entry.infinities} Inf among the {entry.values} values that entered {name}{more}; it is "
            "the first tensor with such values: look at the weights before it, or leave out the windows that overflow there"
        )


def _refuse_not_finite(batch: NamedInputs, number: int) -> None:
    """Refuse a non-finite input before the model sees it: a NaN knot index would raise an error that does not name the input."""
    for name, tensor in batch.named.items():
        if not bool(tensor.isfinite().all()):
            nans, infinities = int(tensor.isnan().sum()), int(tensor.isinf().sum())
            raise QuantizationError(
                f"calibration: {name} of batch {number} is not finite: {nans} NaN and {infinities} Inf; only windows without them can be "
                "calibrated on"
            )
