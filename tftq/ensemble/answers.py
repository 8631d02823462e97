"""A member's answer at one bar: a position, and a forecast where it makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tftq.errors import AnswerError

MEDIAN = 0.5


@dataclass(frozen=True, eq=False)
class Answer:
    """A position to hold until the next bar, and the forecast behind it.

    Args:
        position: from -1 (short) to 1 (long), as a share of what may be held.
        quantiles: float32 [horizon, levels], in the target's unit, ascending along the levels; None where the member makes no forecast.
        levels: of the quantiles, ascending, the median (0.5) among them; none where there are no quantiles.

    Raises:
        AnswerError: a value that is not finite, a position out of range, quantiles out of order or not of their levels' shape.
    """

    position: float
    quantiles: np.ndarray | None = None
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not -1 <= self.position <= 1:  # nor is NaN
            raise AnswerError(f"a position of {self.position:g}; allowed: from -1 to 1")
        if self.quantiles is None:
            if self.levels:
                raise AnswerError(f"levels {self.levels} without quantiles; give both, or neither where the member makes no forecast")
            return
        if MEDIAN not in self.levels or any(low >= high for low, high in zip(self.levels, self.levels[1:], strict=False)):
            raise AnswerError(f"quantiles of the levels {self.levels}; allowed: ascending ones with the median, {MEDIAN}, among them")
        if self.quantiles.ndim != 2 or not len(self.quantiles) or self.quantiles.shape[1] != len(self.levels):
            raise AnswerError(f"quantiles {list(self.quantiles.shape)}; allowed: [horizon, {len(self.levels)}], a column for each level")
        if not np.isfinite(self.quantiles).all():
            raise AnswerError(f"{int((~np.isfinite(self.quantiles)).sum())} of {self.quantiles.size} quantiles are not finite")
        if (np.diff(self.quantiles, axis=1) < 0).any():
            step = int((np.diff(self.quantiles, axis=1) < 0).any(1).argmax()) + 1
            raise AnswerError(f"quantiles out of order at step {step} of the horizon: {self.quantiles[step - 1].tolist()}")

    @classmethod
    def of_forecast(cls, quantiles: ArrayLike, levels: Sequence[float]) -> Answer:
        """Make the answer of a forecaster, whose position is the sign of the median's next step.

        Args:
            quantiles: [horizon, levels], in the target's unit, a return.
            levels: of the quantiles.

        Raises:
            AnswerError: see `Answer`.
        """
        forecast = cls(0.0, np.asarray(quantiles, np.float32), tuple(map(float, levels)))
        return cls(float(np.sign(forecast.median[0])), forecast.quantiles, forecast.levels)

    @classmethod
    def of_scores(cls, scores: ArrayLike, positions: Sequence[float]) -> Answer:
        """Make the answer of an agent: the position of the highest score, the first of those that tie.

        Args:
            scores: [positions], of an agent's policy.
            positions: the position of each score.

        Raises:
            AnswerError: not one score per position, or one that is not finite.
        """
        given = np.asarray(scores, np.float32)
        if given.shape != (len(positions),) or not np.isfinite(given).all():
            raise AnswerError(f"scores {given.tolist()}; allowed: a finite one for each of the positions {list(positions)}")
        return cls(float(positions[int(given.argmax())]))

    @property
    def median(self) -> np.ndarray:
        """Return the median over the horizon, float32 [horizon]; only for answers with quantiles."""
        assert self.quantiles is not None
        median: np.ndarray = self.quantiles[:, self.levels.index(MEDIAN)]
        return median
