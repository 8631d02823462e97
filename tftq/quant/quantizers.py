"""Quantizers: modules that learn a range, and compute as the integers will.

In eval mode a quantizer always computes as it will be deployed; in training it does what the schedule switched on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tftq.errors import RecipeError
from tftq.model.recompute import recomputing
from tftq.quant.fake_quantize import fake_quantize, learned_quantize
from tftq.quant.integers import (
    INT4,
    INT8,
    OFFSET,
    TABLE,
    UINT8,
    IntegerType,
    check_range,
    curve_levels,
    least_error_range,
    quantization_parameters,
    quantize,
)

MOVING_AVERAGE = 0.01  # the weight of an update's windows in the range of an activation while QAT observes
NARROWEST = 0.01  # a learned range never falls below this share of the observed one


class Quantizer(nn.Module):
    """A scale and a zero point, and the switches that the schedule of QAT sets.

    Attributes:
        observing: the range follows what passes through, in training mode only; once it is learned and values are rounded, its gradient.
        enabled: values are rounded in training mode; in eval mode they always are.
        stretch: where ranges are learned, the factor on the observed ones. A share, since an optimizer's steps are as long for
            every parameter, and ranges are of all sizes.
    """

    scale: Tensor
    zero_point: Tensor
    stretch: nn.Parameter | None

    def __init__(self, kind: IntegerType, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.kind = kind
        self.observing = self.enabled = False
        self.register_buffer("scale", torch.full(channels, torch.nan))
        self.register_buffer("zero_point", torch.zeros(channels, dtype=torch.int32))
        self.register_parameter("stretch", None)

    @property
    def active(self) -> bool:
        """Return whether values are rounded now."""
        return self.enabled or not self.training

    @property
    def learning(self) -> bool:
        """Return whether the range follows what passes through now; a recomputed block has been observed already."""
        return self.observing and self.training and not self.stretching and not recomputing()

    @property
    def stretching(self) -> bool:
        """Return whether the range follows its gradient now."""
        return self.stretch is not None and self.observing and self.enabled and self.training

    def range(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the range of each scale, stretched where that is learned."""
        raise NotImplementedError

    def along(self, values: Tensor) -> Tensor:
        """Shape one value per scale to broadcast over the quantized tensor."""
        return values

    def rounded(self, x: Tensor) -> Tensor:
        """Round x to what the integers represent, whatever the switches; float32, x's shape."""
        return fake_quantize(x, self.along(self.scale), self.along(self.zero_point), self.kind)

    @torch.no_grad()
    def settle(self) -> None:
        """Set the scale, between two updates, to that of the range as the optimizer left it."""
        if self.stretch is not None:
            self.stretch.clamp_(min=NARROWEST)
            self._cover()

    def _cover(self) -> None:
        low, high = self.range()
        scale, zero_point = quantization_parameters(low.detach(), high.detach(), self.kind)
        self.scale.copy_(scale)
        self.zero_point.copy_(zero_point)

    def _round(self, x: Tensor, values: int) -> Tensor:
        """Args: x any float; values: of x per scale, in one window. Returns: x, rounded to what the integers represent."""
        if self.stretch is not None:
            self._cover()  # the optimizer may have moved it: the current range computes and is deployed
        if self.stretching:
            low, high = self.range()
            return learned_quantize(x, self.along(low), self.along(high), self.kind, values)
        return self.rounded(x)


class ActivationQuantizer(Quantizer):
    """UINT8 for a whole tensor, static: the range of calibration, moved gently by QAT's observations.

    An update moves it once, by the extremes of all its windows, whatever the number of forward passes: they are kept in
    `seen_low` and `seen_high` until `settle`.
    """

    low: Tensor
    high: Tensor
    seen_low: Tensor
    seen_high: Tensor

    def __init__(self) -> None:
        super().__init__(UINT8, ())
        for name in ("low", "seen_low"):
            self.register_buffer(name, torch.tensor(torch.inf))
        for name in ("high", "seen_high"):
            self.register_buffer(name, torch.tensor(-torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x any shape. Returns: x, rounded to what UINT8 represents where active."""
        if self.learning:
            low, high = torch.aminmax(x.detach().float())
            self.seen_low.copy_(torch.minimum(self.seen_low, low))
            self.seen_high.copy_(torch.maximum(self.seen_high, high))
        return self._round(x, x[0].numel()) if self.active else x

    def range(self) -> tuple[Tensor, Tensor]:
        """Return both ends, scalars."""
        if self.stretch is None:
            return self.low, self.high
        low, high = self.stretch.clamp(min=NARROWEST)
        return self.low * low, self.high * high

    def learn(self) -> None:
        """Let training stretch each end of the range."""
        self.stretch = nn.Parameter(torch.ones(2, device=self.scale.device))

    def cover(self, low: float, high: float) -> None:
        """Set the range, for example calibration's."""
        self.low.fill_(low)
        self.high.fill_(high)
        self._forget_seen()
        self._cover()

    def forget(self) -> None:
        """Reset to the state before any observation."""
        self.low.fill_(torch.inf)
        self.high.fill_(-torch.inf)
        self._forget_seen()

    @torch.no_grad()
    def settle(self) -> None:
        """Move the range, between two updates, towards the extremes observed since the last call, if any."""
        super().settle()
        unseen = (self.seen_low == torch.inf) & (self.seen_high == -torch.inf)  # so that a NaN counts as observed
        self.low.copy_(torch.where(unseen, self.low, self.low.lerp(self.seen_low, MOVING_AVERAGE)))
        self.high.copy_(torch.where(unseen, self.high, self.high.lerp(self.seen_high, MOVING_AVERAGE)))
        self._forget_seen()
        self._cover()

    def check(self, name: str) -> None:
        """Raise QuantizationError, naming the tensor, if the range was never observed or is not finite."""
        check_range(*self.range(), name)

    def _forget_seen(self) -> None:
        self.seen_low.fill_(torch.inf)
        self.seen_high.fill_(-torch.inf)


class WeightQuantizer(Quantizer):
    """Integers with a scale for each output channel, which follows the weight until it is frozen.

    Args:
        channels: output channels.
        axis: their dimension in the weight.
        kind: INT8, which covers the weight, or INT4, which clips the largest values to round the others more finely.
    """

    largest: Tensor

    def __init__(self, channels: int, axis: int, kind: IntegerType = INT8) -> None:
        super().__init__(kind, (channels,))
        self.axis = axis
        self.register_buffer("largest", torch.full((channels,), torch.nan))

    def forward(self, weight: Tensor) -> Tensor:
        """Args: weight, 2-D. Returns: the weight, rounded to what the integers represent where active."""
        if self.learning:
            self.observe(weight)
        return self._round(weight, weight.shape[1 - self.axis]) if self.active else weight

    def range(self) -> tuple[Tensor, Tensor]:
        """Return both ends for each channel [channels]."""
        largest = self.largest if self.stretch is None else self.largest * self.stretch.clamp(min=NARROWEST)
        return -largest, largest

    def learn(self) -> None:
        """Let training stretch the range of each channel."""
        self.stretch = nn.Parameter(torch.ones_like(self.scale))

    @torch.no_grad()
    def observe(self, weight: Tensor) -> None:
        """Cover the weight as it is now."""
        weight = weight.float()
        self.largest.copy_(least_error_range(weight, self.axis, INT4) if self.kind == INT4 else weight.abs().amax(1 - self.axis))
        self._cover()

    @torch.no_grad()
    def integers(self, weight: Tensor) -> Tensor:
        """Args: weight, 2-D. Returns: its integers in a product, in steps of its channel's scale, int8."""
        return quantize(weight, self.along(self.scale), self.along(self.zero_point), self.kind)

    def check(self, name: str) -> None:
        """Raise QuantizationError, naming the weight, if it was never observed or is not finite."""
        check_range(*self.range(), name)

    def along(self, values: Tensor) -> Tensor:
        """Shape one value per channel to broadcast over the weight."""
        return values.unsqueeze(1 - self.axis)


class CurveQuantizer(WeightQuantizer):
    """Four bits per value of a table: base + step · offset, whole numbers that are the table in INT8, with a scale for each channel.

    Base and step belong to one curve's channel, so that a curve that hardly varies keeps its shape, and one far from zero its place. All
    of them follow the table until they are frozen; there is nothing to stretch, since few values share a range.

    Args:
        counts: rows of each curve.
        channels: of the table.
    """

    base: Tensor
    step: Tensor
    curve: Tensor

    def __init__(self, counts: tuple[int, ...], channels: int) -> None:
        super().__init__(channels, axis=1, kind=TABLE)
        self.counts = counts
        for name in ("base", "step"):
            self.register_buffer(name, torch.full((len(counts), channels), torch.nan))
        rows = [curve for curve, count in enumerate(counts) for _ in range(count)]
        self.register_buffer("curve", torch.tensor(rows), persistent=False)

    def learn(self) -> None:
        """Leave the ranges to the table's values."""

    @torch.no_grad()
    def observe(self, weight: Tensor) -> None:
        """Cover each curve as it is now."""
        super().observe(weight)
        curves = (weight.float() / self.scale).split(self.counts)
        base, step = curve_levels(torch.stack([curve.amin(0) for curve in curves]), torch.stack([curve.amax(0) for curve in curves]))
        self.base.copy_(base)
        self.step.copy_(step)

    @torch.no_grad()
    def offsets(self, weight: Tensor) -> Tensor:
        """Args: weight [rows, channels]. Returns: the stored offsets beside base and step, int8 from -8 to 7."""
        return quantize(weight / self.scale - self.base[self.curve], self.step[self.curve], self.zero_point, OFFSET)

    @torch.no_grad()
    def integers(self, weight: Tensor) -> Tensor:
        """Return the unpacked integers, see `WeightQuantizer.integers`."""
        return (self.base[self.curve] + self.step[self.curve] * self.offsets(weight)).to(torch.int8)

    def rounded(self, x: Tensor) -> Tensor:
        """Round x [rows, channels] to what base, step and offset represent, whatever the switches; float32, x's shape."""
        base = self.base[self.curve]  # [rows, channels]
        above = fake_quantize(x.float() / self.scale - base, self.step[self.curve], self.zero_point, OFFSET)
        return (base + above) * self.scale


def quantizers(model: nn.Module) -> Iterator[tuple[str, ActivationQuantizer | WeightQuantizer]]:
    """Return every quantizer of a prepared model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, ActivationQuantizer | WeightQuantizer):
            yield name, module


def learn_ranges(model: nn.Module) -> None:
    """Give the quantizers of a calibrated model a `stretch` each, a parameter that an optimizer built from now on trains.

    Raises:
        RecipeError: no quantizer takes one, as those of four-bit tables.
    """
    for _, quantizer in quantizers(model):
        quantizer.learn()
    if all(quantizer.stretch is None for _, quantizer in quantizers(model)):
        raise RecipeError(
            "quant.qat.ranges learn: nothing has a range to learn, since quant.keep_float or quant.loss_budget leave only tables to be "
            "quantized, and by quant.weights int4 their ranges follow their values; set quant.qat.ranges to observe or quant.weights to "
            "int8, or keep fewer layers in floating point"
        )


def learned_ranges(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters through which the quantizers of a model learn their ranges."""
    return [quantizer.stretch for _, quantizer in quantizers(model) if quantizer.stretch is not None]


@contextmanager
def unrounded(model: nn.Module) -> Iterator[None]:
    """Let a prepared model compute in floating point, in eval mode too, and learn nothing; its switches are restored."""
    switches = [(quantizer, quantizer.training, quantizer.observing, quantizer.enabled) for _, quantizer in quantizers(model)]
    for quantizer, *_ in switches:
        quantizer.training, quantizer.observing, quantizer.enabled = True, False, False
    try:
        yield
    finally:
        for quantizer, training, observing, enabled in switches:
            quantizer.training, quantizer.observing, quantizer.enabled = training, observing, enabled
