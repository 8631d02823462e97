"""Metrics of forecasts in NumPy, summed batch by batch: the same for training, exported models, predictions and back-tests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tftq.spec.summary import ValidationSummary


def pinball(forecast: np.ndarray, target: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """Compute the pinball loss of every forecast quantile in float64 (paper, equation 25).

    `tftq.evaluate.loss.pinball` is the same in torch, for training.

    Args:
        forecast: [batch, horizon, quantiles], in the target's unit, any floating dtype.
        target: [batch, horizon], in the target's unit, any floating dtype.
        quantiles: the probabilities, each in (0, 1), in the forecast's order.

    Returns:
        float64 [batch, horizon, quantiles], in the target's unit, never negative.
    """
    levels = np.asarray(quantiles, np.float64)
    error = np.asarray(target, np.float64)[..., None] - forecast  # [batch, horizon, quantiles]
    losses: np.ndarray = np.maximum(levels * error, (levels - 1) * error)
    return losses


@dataclass(frozen=True)
class Validation:
    """The quality of forecasts over windows.

    Args:
        windows: number of windows.
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
    """Accumulate `Validation` over batches; holds sums only.

    Args:
        quantiles: the levels, in the forecast's order, increasing.
        scale: [horizon], the divisor of each step in the loss, in the target's unit.
    """

    def __init__(self, quantiles: Sequence[float], scale: Sequence[float] | np.ndarray) -> None:
        self.quantiles = [float(quantile) for quantile in quantiles]
        self.scale = [float(step) for step in scale]
        self.windows = 0
        self._pinball = np.zeros((len(self.scale), len(self.quantiles)))
        self._size = np.zeros(len(self.scale))  # Σ|target| of each step
        self._covered = self._crossed = 0

    def add(self, forecast: np.ndarray, target: np.ndarray) -> bool:
        """Add a batch; a batch with forecasts or targets that are not finite is left out.

        Args:
            forecast: [batch, horizon, quantiles], in the target's unit, any floating dtype.
            target: [batch, horizon], in the target's unit, any floating dtype.

        Returns:
            Whether the batch was finite.
        """
        forecast, target = np.asarray(forecast, np.float64), np.asarray(target, np.float64)
        if not (np.isfinite(forecast).all() and np.isfinite(target).all()):
            return False
        self.windows += len(target)
        self._pinball += pinball(forecast, target, self.quantiles).sum(0)
        self._size += np.abs(target).sum(0)
        self._covered += int(((forecast[..., 0] <= target) & (target <= forecast[..., -1])).sum())
        self._crossed += int((np.diff(forecast, axis=-1) < 0).any(-1).sum())
        return True

    def result(self) -> Validation:
        """Compute the metrics of all batches added so far."""
        assert self.windows, "no batch was added"
        horizon, cells = len(self.scale), self.windows * len(self.scale)
        by_step: list[list[float]] = self._pinball.T.tolist()  # Σ pinball of each quantile and step
        size: list[float] = self._size.tolist()
        risks = dict(zip(self.quantiles, by_step, strict=True))
        scaled = sum(sum(row) / scale for row, scale in zip(self._pinball.tolist(), self.scale, strict=True))
        return Validation(
            windows=self.windows,
            loss=scaled / (cells * len(self.quantiles)),
            q_risk={quantile: 2 * sum(steps) / (sum(size) or cells) for quantile, steps in risks.items()},
            q_risk_by_step={
                quantile: [2 * steps[h] / (size[h] or self.windows) for h in range(horizon)] for quantile, steps in risks.items()
            },
            coverage=self._covered / cells,
            crossing_rate=self._crossed / cells,
        )


def validation_summary(validation: Validation) -> ValidationSummary:
    """Convert metrics to their form in summary.json: quantiles as text."""
    return ValidationSummary(
        windows=validation.windows,
        loss=validation.loss,
        q_risk={str(quantile): risk for quantile, risk in validation.q_risk.items()},
        q_risk_by_step={str(quantile): steps for quantile, steps in validation.q_risk_by_step.items()},
        coverage=validation.coverage,
        crossing_rate=validation.crossing_rate,
    )
