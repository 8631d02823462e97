"""The learning rate as a pure function of the applied update; the one schedule of float training and of QAT."""

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.optim import Optimizer

from tftq.recipe.schema import ScheduleRecipe


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from `floor` to 1, a stable part, a cosine cool-down that reaches `floor` at the last update.

    Args:
        total: applied updates of the whole training.
        warmup: updates of the warm-up, the first ones; the update after them has factor 1.
        cooldown: updates of the cool-down, the last ones.
        floor: the factor at both ends, in [0, 1].
    """

    total: int
    warmup: int
    cooldown: int
    floor: float

    def __post_init__(self) -> None:
        assert self.total >= 1 and self.warmup >= 0 and self.cooldown >= 0 and self.warmup + self.cooldown <= self.total, self
        assert 0 <= self.floor <= 1, self

    @classmethod
    def of(cls, recipe: ScheduleRecipe, total: int) -> Self:
        """Make the schedule over `total` updates, its parts rounded to whole updates; a tie goes to the warm-up."""
        warmup = round(recipe.warmup * total)
        return cls(total, warmup, min(round(recipe.cooldown * total), total - warmup), recipe.floor)

    def factor(self, update: int) -> float:
        """Return the factor on the base learning rates at `update`, counted from 0, applied updates only."""
        assert 0 <= update < self.total, f"update {update} of {self.total}"
        if update < self.warmup:
            return self.floor + (1 - self.floor) * update / self.warmup
        left = self.total - 1 - update
        if left >= self.cooldown:
            return 1.0
        return self.floor + (1 - self.floor) * (1 - math.cos(math.pi * left / self.cooldown)) / 2

    def apply(self, optimizer: Optimizer, update: int) -> None:
        """Write `base_lr * factor(update)` into every param group; to be called before every update."""
        factor = self.factor(update)
        for group in optimizer.param_groups:
            lr = group["base_lr"] * factor
            if isinstance(group["lr"], Tensor):  # in compiled or captured optimizers: the tensor itself must stay
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
