"""The one place where a range becomes a scale and a zero point."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tftq.errors import QuantizationError

SCALE_FLOOR = 2.0**-16  # of a range without width, as of a layer's dead input; keeps the int32 bias from overflowing


@dataclass(frozen=True)
class IntegerType:
    """A kind of integer values.

    Attributes:
        low: smallest value.
        high: largest value.
        symmetric: the zero point is 0, and the range is widened to be as far below zero as above.
        dtype: what torch stores it in.
    """

    low: int
    high: int
    symmetric: bool
    dtype: torch.dtype


INT8 = IntegerType(-127, 127, True, torch.int8)  # weights and tables; without -128, so that negating a weight is exact
UINT8 = IntegerType(0, 255, False, torch.uint8)  # activations
INT32 = IntegerType(-(2**31) + 128, 2**31 - 128, True, torch.int32)  # biases; the ends are whole numbers of FP32


def quantization_parameters(low: Tensor, high: Tensor, kind: IntegerType) -> tuple[Tensor, Tensor]:
    """The scale and zero point that cover a range, zero included, since a zero must stay one.

    Args:
        low: lower ends, any shape, float32; finite, for which `check_range` looks before anything is exported.
        high: upper ends, the same shape.
        kind: the integers to cover it with.

    Returns:
        Scale (float32, at least `SCALE_FLOOR`) and zero point (int32), both of the shape of `low`.
    """
    low, high = low.clamp(max=0), high.clamp(min=0)
    if kind.symmetric:
        scale = (torch.maximum(-low, high) / kind.high).clamp(min=SCALE_FLOOR)
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    scale = ((high - low) / (kind.high - kind.low)).clamp(min=SCALE_FLOOR)
    zero_point = (kind.low - torch.round(low / scale)).clamp(kind.low, kind.high)
    return scale, zero_point.to(torch.int32)


def check_range(low: Tensor, high: Tensor, name: str) -> None:
    """Refuse a range that is none.

    Raises:
        QuantizationError: an end is not finite, which is also how a range looks that was never observed, or they are out of order.
    """
    if not bool((torch.isfinite(low) & torch.isfinite(high) & (low <= high)).all()):
        raise QuantizationError(
            f"{name}: its range [{low.min().item():g}, {high.max().item():g}] is not one: it was never observed, or NaN or Inf "
            "passed through; calibrate on windows that reach this layer, and look for the first layer that is not finite"
        )


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, kind: IntegerType) -> Tensor:
    """The integers that stand for x, as ONNX's QuantizeLinear rounds: half to even, then shift, then saturate.

    Args: x float32; scale and zero_point broadcast over x. Returns: x's shape, in the kind's own dtype.
    """
    return (torch.round(x / scale) + zero_point).clamp(kind.low, kind.high).to(kind.dtype)
