"""The quantile loss that training minimises, in torch; `tftq.evaluate.metrics` reports the same in NumPy."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pinball(forecast: Tensor, target: Tensor, quantiles: Sequence[float] | Tensor) -> Tensor:
    """Compute the pinball loss of every forecast quantile, in the precision of `target` (paper, equation 25).

    Args:
        forecast: [batch, horizon, quantiles], in the target's unit, any floating dtype.
        target: [batch, horizon], in the target's unit.
        quantiles: the probabilities, each in (0, 1), in the forecast's order.

    Returns:
        [batch, horizon, quantiles], in the target's unit, never negative.
    """
    levels = torch.as_tensor(quantiles, dtype=target.dtype, device=target.device)  # [quantiles]
    error = target[..., None] - forecast.to(target.dtype)  # [batch, horizon, quantiles]
    return torch.maximum(levels * error, (levels - 1) * error)


def quantile_loss(forecast: Tensor, target: Tensor, quantiles: Sequence[float] | Tensor, scale: Tensor) -> Tensor:
    """Compute the mean pinball loss over batch, horizon and quantiles, each step divided by the target's scale there; in FP32.

    Args:
        forecast: [batch, horizon, quantiles], in the target's unit, any floating dtype.
        target: float32 [batch, horizon], in the target's unit.
        quantiles: the probabilities, in the forecast's order; a tensor on the device saves a copy per call.
        scale: float32 [horizon], the target's scale at each step, positive, in the target's unit.

    Returns:
        A float32 scalar without unit.
    """
    return (pinball(forecast, target.float(), quantiles) / scale[:, None]).mean()
