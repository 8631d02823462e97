"""Scaling inside the network: raw values in, forecasts in the target's own unit out, in training as in the exported graph."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tftq.data.scaling import ColumnScaling, TargetScaling


class InputScaling(nn.Module):
    """Standardise each column, tame the heavy tails by asinh, and clip to the training part's range.

    Args:
        scaling: the fitted values of every column.

    Attributes:
        asinh: the function that computes it; an export for a runtime without it replaces this one.
    """

    asinh: Callable[[Tensor], Tensor] = staticmethod(torch.asinh)
    center: Tensor
    scale: Tensor
    tailed: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, scaling: ColumnScaling) -> None:
        super().__init__()
        for name in ("center", "scale", "tailed", "low", "high"):
            self.register_buffer(name, torch.as_tensor(getattr(scaling, name)))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., columns] raw. Returns: the same shape, scaled."""
        z = (x - self.center) / self.scale
        z = torch.where(self.tailed, self.asinh(z), z)
        return torch.minimum(torch.maximum(z, self.low), self.high)


class TargetUnscaling(nn.Module):
    """Convert the network's standardised forecast to the target's unit, with one scale for each step of the horizon."""

    center: Tensor
    scale: Tensor

    def __init__(self, scaling: TargetScaling) -> None:
        super().__init__()
        self.register_buffer("center", torch.as_tensor(scaling.center))
        self.register_buffer("scale", torch.as_tensor(scaling.scale))

    def forward(self, forecast: Tensor) -> Tensor:
        """Args: forecast [batch, horizon, quantiles]. Returns: the same shape, in the target's unit."""
        return forecast * self.scale[:, None] + self.center[:, None]
