"""The loss from quantizing each layer, and the fewest layers in floating point that keep a model's loss within a budget."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tftq.errors import QuantizationError
from tftq.model.batch import Batch
from tftq.quant.layers import FakeQuantizedTable, quantized_layers
from tftq.quant.quantizers import WeightQuantizer, quantizers, unrounded


@dataclass(frozen=True)
class LayerSensitivity:
    """The loss from quantizing one layer.

    Attributes:
        layer: its name.
        weights: how many it has.
        weight_snr_db: signal-to-noise ratio of its weights, in dB; None where rounding changes nothing, or all are zero.
        input_snr_db: the same of its product's input; None too where the input has no range of its own, as in an LSTM.
        loss: the model's when this layer alone is quantized.
        effect: that loss relative to the float model's, less 1.
    """

    layer: str
    weights: int
    weight_snr_db: float | None
    input_snr_db: float | None
    loss: float
    effect: float


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a calibrated model; all losses are over the same windows.

    Attributes:
        windows: how many.
        float_loss: of the model in floating point.
        quantized_loss: with everything quantized.
        layers: the measured ones, the one with the largest effect first.
        budget: the loss allowed above the float model's, in proportion; None where any is.
        kept_float: the layers that must stay in floating point for that.
        loss: with these in floating point and everything else quantized.
    """

    windows: int
    float_loss: float
    quantized_loss: float
    layers: tuple[LayerSensitivity, ...]
    budget: float | None
    kept_float: tuple[str, ...]
    loss: float

    def above_float(self, loss: float) -> float:
        """Return a loss relative to the float model's, less 1."""
        return _above(loss, self.float_loss)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain types, for summary.json: the layers are its `sensitivity`."""
        entries = asdict(self)
        return {**{name: entries[name] for name in entries if name != "layers"}, "sensitivity": entries["layers"]}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> "Sensitivity":
        """Build from the result of `as_dict`, read back from JSON."""
        given = dict(entries)
        layers = tuple(LayerSensitivity(**layer) for layer in given.pop("sensitivity"))
        return cls(**{**given, "kept_float": tuple(given["kept_float"])}, layers=layers)


def measure_sensitivity(
    model: nn.Module, batches: Iterable[Batch], loss: Callable[[], float], *, windows: int, every_layer: bool, budget: float | None
) -> Sensitivity:
    """Quantize each layer alone, and keep the fewest in floating point that the budget needs.

    Args:
        model: prepared and calibrated, in eval mode.
        batches: windows to measure signal and noise on, on the model's device; only a few sums of them are kept.
        loss: returns the model's current loss, on the same windows each time.
        windows: how many these are.
        every_layer: measure each layer in any case, not only where everything quantized is above the budget.
        budget: the loss allowed above the float model's, in proportion.

    Returns:
        The layers and the choice.

    Raises:
        QuantizationError: the budget is not kept even where only the layer with the least effect is quantized.
    """
    assert not model.training
    names = list(quantized_layers(model))
    with in_floating_point(model, names):
        float_loss = loss()
    quantized_loss = loss()
    over = budget is not None and _above(quantized_loss, float_loss) > budget
    layers = _measure_layers(model, batches, loss, float_loss) if every_layer or over else ()
    choice: tuple[tuple[str, ...], float] = (), quantized_loss
    if budget is not None and over:
        choice = _fewest_in_float(model, [layer.layer for layer in layers], loss, float_loss, quantized_loss, budget)
    return Sensitivity(windows, float_loss, quantized_loss, layers, budget, *choice)


@contextmanager
def in_floating_point(model: nn.Module, layers: Iterable[str]) -> Iterator[None]:
    """Let some layers of a prepared model compute in floating point, in eval mode too.

    Args:
        model: prepared.
        layers: their names.
    """
    with ExitStack() as stack:
        for name in layers:
            stack.enter_context(unrounded(model.get_submodule(name)))
        yield


def _measure_layers(
    model: nn.Module, batches: Iterable[Batch], loss: Callable[[], float], float_loss: float
) -> tuple[LayerSensitivity, ...]:
    """Measure each layer; the largest effect first, equal ones in the model's order."""
    layers = quantized_layers(model)
    noises = _measure_noise(model, batches)
    found = []
    for name, layer in layers.items():
        with in_floating_point(model, [other for other in layers if other != name]):
            alone = loss()
        weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        of_weight, of_input = noises[name]
        found.append(LayerSensitivity(name, weights, of_weight.db, of_input.db, alone, _above(alone, float_loss)))
    return tuple(sorted(found, key=lambda layer: -layer.effect))


def _fewest_in_float(
    model: nn.Module, ranked: list[str], loss: Callable[[], float], float_loss: float, quantized_loss: float, budget: float
) -> tuple[tuple[str, ...], float]:
    """Take the layers with the largest effect, one by one until the model keeps the budget; then put back those not needed."""

    def loss_with(kept: Collection[str]) -> float:
        with in_floating_point(model, kept):
            return loss()

    kept: list[str] = []
    reached = quantized_loss
    for name in ranked[:-1]:  # with the last one nothing would be quantized
        kept.append(name)
        reached = loss_with(kept)
        if _above(reached, float_loss) <= budget:
            break
    else:
        raise QuantizationError(
            f"quant.loss_budget {budget:g} cannot be kept: with every layer but {ranked[-1]} in floating point the quantile loss is still "
            f"above FP32's by {_above(reached, float_loss):.3g} of it; raise the budget, calibrate on more windows "
            "(quant.calibration_windows), or "
            "set quant.method to none"
        )
    for name in reversed(kept[:-1]):  # the last one was needed
        fewer = [other for other in kept if other != name]
        without = loss_with(fewer)
        if _above(without, float_loss) <= budget:
            kept, reached = fewer, without
    return tuple(kept), reached


def _above(loss: float, float_loss: float) -> float:
    return (loss - float_loss) / (float_loss or 1.0)


@dataclass
class _Noise:
    """Sums of the squares of values, and of their rounding errors."""

    signal: float = 0.0
    noise: float = 0.0

    @property
    def db(self) -> float | None:
        """Return the signal-to-noise ratio; None where there is no signal or no noise."""
        return 10 * math.log10(self.signal / self.noise) if self.signal and self.noise else None

    def add(self, x: Tensor, rounded: Tensor) -> None:
        """Add values."""
        self.signal += x.square().sum(dtype=torch.float64).item()
        self.noise += (x - rounded).square().sum(dtype=torch.float64).item()


def _measure_noise(model: nn.Module, batches: Iterable[Batch]) -> dict[str, tuple[_Noise, _Noise]]:
    """Measure the noise of each layer's weights and of its product's inputs, as both are in the float model, in one pass."""
    found = {name: (_Noise(), _Noise()) for name in quantized_layers(model)}
    hooks = []
    with unrounded(model), torch.no_grad():
        try:
            for name, layer in quantized_layers(model).items():
                of_weight, of_input = found[name]
                for _, quantizer in quantizers(layer):
                    noise = of_weight if isinstance(quantizer, WeightQuantizer) else of_input
                    hooks.append(quantizer.register_forward_pre_hook(_comparing(noise, quantizer.rounded)))
                if isinstance(layer, FakeQuantizedTable):
                    hooks.append(layer.shares.register_forward_pre_hook(_comparing(of_input, layer.rounded_shares)))
            for batch in batches:
                model(*batch.inputs)
        finally:
            for hook in hooks:
                hook.remove()
    return found


def _comparing(noise: _Noise, rounded: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def compare(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].float()
        noise.add(x, rounded(x))

    return compare
