"""Observers: the state that calibration keeps of each tensor, a few numbers or a histogram."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from tftq.errors import QuantizationError
from tftq.quant.histogram import Histogram, mse_range, percentile_range

Method = Literal["minmax", "moving_average", "percentile", "mse"]

GROUP = 32  # consecutive windows whose extremes are one entry of the moving average: those of single windows would cut half of them off
GROUP_WEIGHT = 0.01  # of a group in the moving average, once the mean's weight falls below it


class Observer(ABC):
    """The range of one tensor, from one pass."""

    @abstractmethod
    def observe(self, x: Tensor) -> None:
        """Observe the tensor's values over some windows [windows, ...], all finite."""

    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Return the range of everything observed, at least one batch."""


class MinMax(Observer):
    """The smallest and the largest value."""

    def __init__(self) -> None:
        self._low, self._high = torch.inf, -torch.inf

    def observe(self, x: Tensor) -> None:
        low, high = (end.item() for end in torch.aminmax(x))
        self._low, self._high = min(self._low, low), max(self._high, high)

    def range(self) -> tuple[float, float]:
        return self._low, self._high


class MovingAverage(Observer):
    """The smallest and the largest value of each `GROUP` consecutive windows, averaged in their order.

    The n-th group counts 1/n, so that the average is the mean, until that is less than `GROUP_WEIGHT`. Windows are counted, not
    batches: the batch size does not matter.
    """

    def __init__(self) -> None:
        self._windows, self._average = 0, (0.0, 0.0)
        self._group = torch.inf, -torch.inf  # the extremes of the last, unfinished group

    def observe(self, x: Tensor) -> None:
        ends = torch.stack(torch.aminmax(x.flatten(1), dim=1), dim=1)  # [windows, 2]
        for low, high in ends.tolist():
            self._group = min(self._group[0], low), max(self._group[1], high)
            self._windows += 1
            if self._windows % GROUP == 0:
                self._average, self._group = self._averaged(), (torch.inf, -torch.inf)

    def range(self) -> tuple[float, float]:
        return self._averaged() if self._windows % GROUP else self._average

    def _averaged(self) -> tuple[float, float]:
        """Return the average including the last group."""
        weight = max(GROUP_WEIGHT, 1 / math.ceil(self._windows / GROUP))
        low, high = (old + weight * (new - old) for old, new in zip(self._average, self._group, strict=True))
        return low, high


class FromHistogram(Observer):
    """A range that is read from a histogram of all values.

    Args:
        read: returns the range of a histogram.
    """

    def __init__(self, read: Callable[[Histogram], tuple[float, float]]) -> None:
        self._read = read
        self._histogram: Histogram | None = None

    def observe(self, x: Tensor) -> None:
        self._histogram = self._histogram or Histogram(x.device)
        self._histogram.add(x)

    def range(self) -> tuple[float, float]:
        assert self._histogram is not None
        return self._read(self._histogram)


def observer_of(method: Method, percentile: float) -> Callable[[], Observer]:
    """Return the function that makes a new observer for each tensor.

    Args:
        method: how a range follows from the observed values.
        percentile: of the method `percentile`, in (50, 100].

    Raises:
        QuantizationError: there is no such method or percentile.
    """
    if not 50 < percentile <= 100:
        raise QuantizationError(f"calibration: found percentile {percentile}; allowed: above 50, at most 100")
    match method:
        case "minmax":
            return MinMax
        case "moving_average":
            return MovingAverage
        case "percentile":
            return partial(FromHistogram, partial(percentile_range, percentile=percentile))
        case "mse":
            return partial(FromHistogram, mse_range)
    raise QuantizationError(f"calibration: found method {method!r}; allowed: {', '.join(get_args(Method))}")
