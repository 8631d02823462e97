"""The reference model and random windows, for the measurements of these checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.model.batch import Batch
from tftq.model.forecaster import Forecaster
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe
from tftq.spec.inputs import Column, Inputs, Role
from tftq.train.build import new_model

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Size:
    """The columns and the window, and how the network differs from that of recipes/es225_*.yaml."""

    static: int
    observed: int
    known: int
    lookback: int
    horizon: int
    overrides: tuple[str, ...] = ()

    def inputs(self) -> Inputs:
        """Real columns of every role."""
        counts: dict[Role, int] = {"static": self.static, "observed": self.observed, "known": self.known}
        columns = tuple(Column(f"{role}_{number}", role) for role, count in counts.items() for number in range(count))
        return Inputs(columns, self.lookback, self.horizon)

    def scaling(self) -> Scaling:
        """Columns that are standard normal already."""
        return Scaling(_standard(self.observed + self.known), _standard(self.static))

    def target_scaling(self) -> TargetScaling:
        """A target that is standard normal already."""
        return TargetScaling(np.zeros(self.horizon, np.float32), np.ones(self.horizon, np.float32))

    def recipe(self, method: str, precision: str, batch: int) -> Recipe:
        """The reference recipe without ("none") or with ("qat") quantization, an epoch of each stage."""
        file, own = ("es225_qat", ["quant.qat.epochs=1"]) if method == "qat" else ("es225_fp32", [])
        changes = [f"train.precision={precision}", f"train.batch_size={batch}", "train.epochs=1", *own, *self.overrides]
        return load_recipe(ROOT / "recipes" / f"{file}.yaml", changes)

    def model(self, recipe: Recipe) -> Forecaster:
        """A new model with the recipe's architecture."""
        return new_model(recipe.model, self.inputs(), self.scaling(), self.target_scaling())


REFERENCE = Size(static=5, observed=210, known=10, lookback=60, horizon=10)
SMALL = Size(2, 6, 2, 12, 4, ("model.hidden=16", "model.heads=2", "model.lstm_layers=1", "model.knots=8"))


class RandomWindows:
    """Windows over random rows, gathered as the real ones are, whose target is a mean of known columns, which can be learned.

    Args:
        size: the columns and the window.
        count: how many windows.
        seed: of the rows.
    """

    def __init__(self, size: Size, count: int, seed: int = 1) -> None:
        source = torch.Generator().manual_seed(seed)
        self.size = size
        self.rows = torch.randn(count + size.lookback + size.horizon, size.observed + size.known, generator=source)
        self.static = torch.randn(count, size.static, generator=source)

    def __len__(self) -> int:
        return len(self.static)

    def batch(self, indices: Tensor | Sequence[int]) -> Batch:
        """The windows at `indices`."""
        start = torch.as_tensor(indices)
        lookback, horizon = self.size.lookback, self.size.horizon
        history = self.rows[start[:, None] + torch.arange(lookback)]  # [batch, lookback, history columns]
        future = self.rows[:, self.size.observed :][start[:, None] + lookback + torch.arange(horizon)]
        return Batch(history, future, self.static[start], future.mean(dim=-1))


def _standard(count: int) -> ColumnScaling:
    zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
    return ColumnScaling(center=zeros, scale=ones, tailed=zeros > 0, low=-3 * ones, high=3 * ones)
