"""The one place where a range becomes a scale and a zero point."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tftq.errors import QuantizationError

SHARES = tuple(1 - 0.05 * i for i in range(9))  # fractions of a weight's largest value, tried as the end of its range
SCALE_FLOOR = 2.0**-16  # for a range without width, such as a layer's dead input; keeps the int32 bias from overflowing


@dataclass(frozen=True)
class IntegerType:
    """A type of integers.

    Attributes:
        low: smallest value.
        high: largest value.
        symmetric: the zero point is 0, and the range is widened to be as far below zero as above.
        dtype: the type torch stores it in.
    """

    low: int
    high: int
    symmetric: bool
    dtype: torch.dtype


INT8 = IntegerType(-127, 127, True, torch.int8)  # weights and tables; without -128, so that negating a weight is exact
INT4 = IntegerType(-7, 7, True, torch.int8)  # the same in four bits, for which torch has no type; packed when exported
OFFSET = IntegerType(-8, 7, False, torch.int8)  # four bits again, of a table: a curve's values above and below its middle
TABLE = IntegerType(-119, 119, True, torch.int8)  # a table stored so: its outermost level may lie eight steps beyond its largest value
UINT8 = IntegerType(0, 255, False, torch.uint8)  # activations
INT32 = IntegerType(-(2**31) + 128, 2**31 - 128, True, torch.int32)  # biases; the ends are whole numbers of FP32


def quantization_parameters(low: Tensor, high: Tensor, kind: IntegerType) -> tuple[Tensor, Tensor]:
    """Return the scale and zero point that cover a range, zero included, since zero must stay exact.

    Args:
        low: lower ends, any shape, float32; finite, as `check_range` verifies before an export.
        high: upper ends, the same shape.
        kind: the integer type to cover it with.

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


def least_error_range(weight: Tensor, axis: int, kind: IntegerType) -> Tensor:
    """Return the end of the symmetric range with the least squared rounding error: with few levels, below the largest value.

    Args:
        weight: 2-D, float32.
        axis: the dimension with one range per entry.
        kind: the integer type.

    Returns:
        One value, at least 0, for each entry of that dimension.
    """
    largest = weight.abs().amax(1 - axis, keepdim=True)
    errors, ends = [], [largest * share for share in SHARES]
    for end in ends:
        scale, zero_point = quantization_parameters(-end, end, kind)
        rounded = quantize(weight, scale, zero_point, kind).float() * scale
        errors.append((rounded - weight).square().sum(1 - axis, keepdim=True))
    best = torch.stack(errors).argmin(0, keepdim=True)
    return torch.stack(ends).gather(0, best)[0].squeeze(1 - axis)


def curve_levels(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sixteen levels, all whole numbers, that cover each curve of a table: base + step · offset.

    They reach to half a step from its ends, and beyond them by less than eight steps of the scale: farthest where the curve is constant.

    Args: low, high: ends of each curve, in steps of its table's scale, any shape, float32. Returns: base and step, whole numbers, of
    that shape, float32.
    """
    step = torch.ceil((high - low) / (OFFSET.high - OFFSET.low + 1)).clamp(min=1)
    return torch.round((low + high + step) / 2), step


def check_range(low: Tensor, high: Tensor, name: str) -> None:
    """Refuse an invalid range.

    Raises:
        QuantizationError: an end is not finite (as in a range that was never observed), or the ends are out of order.
    """
    if not bool((torch.isfinite(low) & torch.isfinite(high) & (low <= high)).all()):
        raise QuantizationError(
            f"{name}: its range [{low.min().item():g}, {high.max().item():g}] is not one: it was never observed, or NaN or Inf "
            "passed through; calibrate on windows that reach this layer, and look for the first layer that is not finite"
        )


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, kind: IntegerType) -> Tensor:
    """Quantize x to integers as ONNX's QuantizeLinear does: round half to even, shift, saturate.

    Args: x float32; scale and zero_point broadcast over x. Returns: x's shape, in the integer type's dtype.
    """
    return (torch.round(x / scale) + zero_point).clamp(kind.low, kind.high).to(kind.dtype)
