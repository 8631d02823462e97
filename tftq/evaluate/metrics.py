"""How good forecasts are: sums that are updated batch by batch, and what they come to; whoever made the forecasts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tftq.evaluate.loss import pinball


@dataclass(frozen=True)
class Validation:
    """The quality of forecasts over windows.

    Args:
        windows: how many.
        loss: the training loss, without unit.
        q_risk: for each quantile `2·Σ pinball / Σ|target|` (paper, equation 26); where every target is 0 that ratio does not exist,
            and this is twice the mean pinball loss, in the target's unit.
        q_risk_by_step: the same for each step of the horizon.
        coverage: share of the targets between the lowest and the highest quantile, bounds included.
        crossing_rate: share of the forecast steps with a quantile below a lower one.
    """

    windows: int
    loss: float
    q_risk: dict[float, float]
    q_risk_by_step: dict[float, list[float]]
    coverage: float
    crossing_rate: float


class ForecastMetrics:
    """Gathers `Validation` from batches; keeps sums as Python numbers, so nothing of a batch stays alive.

    Args:
        quantiles: the levels, in the forecast's order, increasing.
        scale: [horizon], what the loss divides each step by, in the target's unit.
    """

    def __init__(self, quantiles: Sequence[float], scale: Tensor) -> None:
        self.quantiles = [float(quantile) for quantile in quantiles]
        self.scale: list[float] = scale.tolist()
        self.windows = 0
        self._pinball = [[0.0] * len(self.quantiles) for _ in self.scale]  # horizon, quantiles
        self._size = [0.0] * len(self.scale)  # Σ|target| a step
        self._covered = self._crossed = 0

    def add(self, forecast: Tensor, target: Tensor) -> bool:
        """Count a batch in; a batch whose forecasts or targets are not all finite is left out.

        Args:
            forecast: [batch, horizon, quantiles], in the target's unit, any floating dtype.
            target: [batch, horizon], in the target's unit.

        Returns:
            Whether the batch was finite.
        """
        forecast, target = forecast.detach().cpu().double(), target.detach().cpu().double()
        losses = pinball(forecast, target, self.quantiles).sum(0)  # [horizon, quantiles]
        if not losses.isfinite().all():
            return False
        self.windows += len(target)
        self._pinball = (torch.tensor(self._pinball, dtype=torch.float64) + losses).tolist()
        self._size = (torch.tensor(self._size, dtype=torch.float64) + target.abs().sum(0)).tolist()
        self._covered += int(((forecast[..., 0] <= target) & (target <= forecast[..., -1])).sum())
        self._crossed += int((forecast.diff(dim=-1) < 0).any(-1).sum())
        return True

    def result(self) -> Validation:
        """What the batches so far come to."""
        assert self.windows, "no batch was added"
        horizon, cells = len(self.scale), self.windows * len(self.scale)
        risks = {quantile: [row[i] for row in self._pinball] for i, quantile in enumerate(self.quantiles)}  # Σ pinball a step
        scaled = sum(sum(row) / scale for row, scale in zip(self._pinball, self.scale, strict=True))
        return Validation(
            windows=self.windows,
            loss=scaled / (cells * len(self.quantiles)),
            q_risk={quantile: 2 * sum(steps) / (sum(self._size) or cells) for quantile, steps in risks.items()},
            q_risk_by_step={
                quantile: [2 * steps[h] / (self._size[h] or self.windows) for h in range(horizon)] for quantile, steps in risks.items()
            },
            coverage=self._covered / cells,
            crossing_rate=self._crossed / cells,
        )


def validation_summary(found: Validation) -> dict[str, object]:
    """How good forecasts of windows are, as it stands in summary.json: quantiles as text."""
    return {
        "windows": found.windows,
        "loss": found.loss,
        "q_risk": {str(quantile): risk for quantile, risk in found.q_risk.items()},
        "q_risk_by_step": {str(quantile): steps for quantile, steps in found.q_risk_by_step.items()},
        "coverage": found.coverage,
        "crossing_rate": found.crossing_rate,
    }
