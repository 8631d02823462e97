"""Rounding as the integers will: quantize, dequantize, and pass gradients through."""

import torch
from torch import Tensor

from tftq.quant.integers import IntegerType, quantization_parameters


class _FakeQuantize(torch.autograd.Function):
    """Round to representable values; the gradient passes straight through where they do not saturate."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, zero_point: Tensor, kind: IntegerType) -> Tensor:  # type: ignore[no-untyped-def]
        integers = torch.round(x / scale) + zero_point
        ctx.save_for_backward((integers >= kind.low) & (integers <= kind.high))
        return (integers.clamp(kind.low, kind.high) - zero_point) * scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, kind: IntegerType) -> Tensor:
    """Quantize and dequantize, in FP32 under autocast too.

    Args: x any float; scale and zero_point broadcast over x. Returns: float32, x's shape.
    """
    return _FakeQuantize.apply(x.float(), scale, zero_point, kind)


class _LearnedQuantize(torch.autograd.Function):
    """Round as `_FakeQuantize` does, with gradients for the ends of the range too, as in learned step size quantization.

    Esser et al. 2020, arXiv 1902.08153, section 2.1, for two ends: a value that saturates moves with its end, any other by its rounding
    error in steps with the width of a step. Scaled as in their section 2.2.
    """

    @staticmethod
    def forward(ctx, x: Tensor, low: Tensor, high: Tensor, kind: IntegerType, values: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, low, high)
        ctx.kind, ctx.values = kind, values
        scale, zero_point = quantization_parameters(low, high, kind)
        return ((torch.round(x / scale) + zero_point).clamp(kind.low, kind.high) - zero_point) * scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        x, low, high = ctx.saved_tensors
        kind: IntegerType = ctx.kind
        scale, zero_point = quantization_parameters(low, high, kind)
        steps = x / scale
        rounded = torch.round(steps)
        below, above = rounded + zero_point < kind.low, rounded + zero_point > kind.high
        inside = gradient * ~(below | above)
        width = inside * (rounded - steps) / (kind.high - kind.low)
        of_low, of_high = ((gradient * below - width).sum_to_size(low.shape), (gradient * above + width).sum_to_size(high.shape))
        balance = (ctx.values * kind.high) ** -0.5
        return inside, of_low * balance, of_high * balance, None, None


def learned_quantize(x: Tensor, low: Tensor, high: Tensor, kind: IntegerType, values: int) -> Tensor:
    """Quantize and dequantize with gradients for the ends of the range too, in FP32 under autocast too.

    Args:
        x: any float.
        low, high: the ends of the range, broadcast over x.
        kind: the integer type.
        values: number of values of x per scale, in one window; scales the gradients of the ends.

    Returns:
        float32, x's shape.
    """
    return _LearnedQuantize.apply(x.float(), low.clamp(max=0), high.clamp(min=0), kind, values)
