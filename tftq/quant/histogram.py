"""A histogram of a stream of values, none of which is kept, and the ranges derived from it."""

import math

import torch
from torch import Tensor

from tftq.quant.integers import UINT8, quantization_parameters, quantize

BINS = 2**12  # at least 1,024 between zero and the value farthest from it: four to a step of UINT8
CHUNK = 2**18  # values that are sorted into bins at a time
SHARES = 64  # candidates for an end of a range, equally spaced from zero to the extreme


class Histogram:
    """Exact counts in equal bins about zero, whose width is a power of two; it doubles, by merging pairs, until the farthest value fits.

    The counts therefore depend on the values alone, not on their order or batches.

    Args:
        device: where it counts.

    Attributes:
        low: the smallest value, exactly; infinite before the first.
        high: the largest value, exactly.
        counts: of each bin, int64 [BINS]; bin k holds the values in [(k − BINS / 2) · width, (k + 1 − BINS / 2) · width).
        width: of a bin.
    """

    def __init__(self, device: torch.device) -> None:
        self.low, self.high = math.inf, -math.inf
        self.counts = torch.zeros(BINS, dtype=torch.int64, device=device)
        self.width = 2.0**-160  # BINS / 2 of these are 2**-149, the smallest float32: every value that is not zero decides the width

    def add(self, x: Tensor) -> None:
        """Count the values of a tensor, any shape, all of them finite."""
        low, high = (end.item() for end in torch.aminmax(x.float()))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._grow(max(-low, high))
        for part in x.flatten().split(CHUNK):
            bins = (part.double() / self.width).floor_().long() + BINS // 2
            self.counts += torch.bincount(bins, minlength=BINS)

    def centers(self) -> Tensor:
        """Return a representative value of each bin, none beyond the extremes, float64 [BINS]."""
        centers = (torch.arange(BINS, device=self.counts.device) - BINS // 2 + 0.5).double() * self.width
        return centers.clamp(self.low, self.high)

    def _grow(self, largest: float) -> None:
        """Widen the bins until they contain `largest` and its negative."""
        if largest < BINS // 2 * self.width:
            return
        width = 2.0 ** (math.frexp(largest)[1] - math.log2(BINS // 2))
        doublings = min(round(math.log2(width / self.width)), BINS.bit_length())
        bins = torch.arange(BINS, device=self.counts.device) - BINS // 2
        self.counts = torch.zeros_like(self.counts).index_add_(0, (bins >> doublings) + BINS // 2, self.counts)
        self.width = width


def percentile_range(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Return the range that leaves out, at each end, the values beyond a percentile, exact to one bin.

    Args:
        histogram: of at least one value.
        percentile: in (50, 100]; 99.9 leaves out the least and the largest thousandth, 100 nothing.
    """
    cumulated = histogram.counts.cumsum(0)
    total = int(cumulated[-1])
    outside = math.floor(round(total * (100 - percentile) / 100, 6))  # values left out at each end; 100 - 99.9 is a little below 0.1
    first, last = torch.searchsorted(cumulated, cumulated.new_tensor([outside + 1, total - outside])).tolist()
    low, high = (first - BINS // 2) * histogram.width, (last + 1 - BINS // 2) * histogram.width
    return max(low, histogram.low), min(high, histogram.high)


def mse_range(histogram: Histogram) -> tuple[float, float]:
    """Return the range under which UINT8 represents the values with the least mean square error; never worse than the extremes.

    Both ends are narrowed together first, and then each of them alone.

    Args:
        histogram: of at least one value.
    """
    shares = torch.arange(1, SHARES + 1, device=histogram.counts.device) / SHARES  # the last one is 1, the end itself
    low, high = torch.tensor([min(histogram.low, 0.0), max(histogram.high, 0.0)], device=shares.device)
    for of_low, of_high in ((shares, shares), (shares, torch.ones_like(shares)), (torch.ones_like(shares), shares)):
        errors = squared_errors(histogram, of_low * low, of_high * high)
        best = len(shares) - 1 - int(errors.flip(0).argmin())  # the widest of equal ones
        low, high = of_low[best] * low, of_high[best] * high
    return low.item(), high.item()


def squared_errors(histogram: Histogram, low: Tensor, high: Tensor) -> Tensor:
    """Sum the squared errors of quantizing all values under each range, every value at its bin's center.

    Args: low, high: ends of ranges, float32 [ranges]. Returns: float64 [ranges].
    """
    scale, zero_point = (values[:, None] for values in quantization_parameters(low, high, UINT8))
    filled = histogram.counts.nonzero().flatten()
    centers = histogram.centers()[filled]
    rounded = (quantize(centers, scale, zero_point, UINT8).double() - zero_point) * scale  # [ranges, filled bins]
    return ((rounded - centers) ** 2) @ histogram.counts[filled].double()
