"""A tiny model and tiny windows, in the shapes that the real ones promise."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.model.small import example
from tftq.model.batch import Batch
from tftq.recipe.schema import TrainRecipe, ValidateRecipe
from tftq.spec.inputs import Inputs
from tftq.train.context import TrainingData, Workplace
from tftq.train.stages import float_settings
from tftq.train.trainer import Trainer

LOOKBACK, HORIZON, OBSERVED, KNOWN = 4, 3, 2, 1
QUANTILES = (0.1, 0.5, 0.9)


class TinyModel(nn.Module):
    """A forecast from two linear layers with a norm and dropout between; keeps the size of every batch it saw."""

    target_scale: Tensor

    def __init__(self, seed: int = 0, *, dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.quantiles = QUANTILES
        self.body = nn.Linear(LOOKBACK * (OBSERVED + KNOWN) + HORIZON * KNOWN, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, HORIZON * len(QUANTILES))
        self.register_buffer("target_scale", torch.full((HORIZON,), scale))
        self.seen: list[tuple[bool, int]] = []  # (training, batch)

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        self.seen.append((self.training, len(history)))
        flat = torch.cat([history.flatten(1), future.flatten(1)], dim=1)
        return self.head(self.dropout(self.norm(self.body(flat)))).unflatten(1, (HORIZON, len(QUANTILES)))

    def validation_batches(self) -> list[int]:
        return [batch for training, batch in self.seen if not training]


class TinyWindows:
    """Random windows whose target is a linear function of the history plus noise, or a constant; counts what is asked of it."""

    def __init__(self, count: int, *, seed: int = 1, target: float | None = None) -> None:
        source = torch.Generator().manual_seed(seed)
        self.history = torch.randn(count, LOOKBACK, OBSERVED + KNOWN, generator=source)
        self.future = torch.randn(count, HORIZON, KNOWN, generator=source)
        noise = 0.1 * torch.randn(count, HORIZON, generator=source)
        self.target = self.history[:, -1, :1] + self.future[..., 0] + noise if target is None else torch.full((count, HORIZON), target)
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.history)

    def batch(self, indices: Tensor | Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        self.asked.append(chosen.tolist())
        return Batch(self.history[chosen], self.future[chosen], None, self.target[chosen])

    def targets(self, indices: np.ndarray) -> np.ndarray:
        return self.target.numpy()[indices]

    def naive(self, indices: np.ndarray) -> np.ndarray:
        return self.history[indices, -1, :1].expand(-1, HORIZON).numpy()


class RealWindows:
    """Random windows for the real network, made anew whenever they are asked for."""

    def __init__(self, inputs: Inputs, count: int) -> None:
        self.inputs, self.count = inputs, count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor | Sequence[int]) -> Batch:
        history, future, *static = example(self.inputs, batch=len(indices))
        return Batch(history, future, static[0] if static else None, torch.ones(len(indices), self.inputs.horizon))


class ListTimeline:
    """Keeps the phases that were recorded."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int]] = []

    def record(self, phase: str, epoch: int) -> None:
        self.records.append((phase, epoch))


def tiny_trainer(
    folder: Path, model: nn.Module | None = None, *, windows: int = 16, validate: ValidateRecipe | None = None, **options: Any
) -> Trainer:
    """A trainer of 3 epochs over batches of 2; `options` of TrainRecipe and of what a Trainer takes (`forward`: its batch)."""
    own = {name: options.pop(name) for name in ("best_from", "keep_start", "range_lr") if name in options}
    if "forward" in options:
        own["forward_batch"] = options.pop("forward")
    data = TrainingData(
        options.pop("train", None) or TinyWindows(windows),
        options.pop("validation", None) or TinyWindows(10, seed=2),
        options.pop("data", ""),
    )
    place = Workplace(folder, torch.device("cpu"), options.pop("timeline", None) or ListTimeline(), options.pop("recipe", "name: tiny\n"))
    on_update = options.pop("on_update", lambda update: None)
    seed = options.pop("seed", 3)
    recipe = TrainRecipe(**{"epochs": 3, "batch_size": 2, **options})
    settings = replace(float_settings(recipe, validate or ValidateRecipe(), seed=seed), **own)
    return Trainer(model if model is not None else TinyModel(), data, settings, place, on_update=on_update)


def metrics_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
