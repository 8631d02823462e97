"""Runs of the whole chain that several tests look at; each is done once a test process."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tftq.console import Console
from tftq.jobs.run import run
from tftq.plan.training import Planner, StagePlan
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe

ROOT = Path(__file__).parents[1]
SMALL = ("model.hidden=16", "model.knots=8", "train.epochs=2", "quant.qat.epochs=1", "quant.calibration_windows=64")


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what it printed and its summary.json."""

    folder: Path
    printed: str
    summary: dict[str, Any]


DoRun = Callable[..., Run]


@cache
def keep_operators_of_the_exporter() -> None:
    """Torch builds the table of what it can export anew at each export, for half a second; nothing is ever added to it in tests."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]


def make_runner() -> DoRun:
    """A function that does a run of a recipe, planning equal stages once."""
    keep_operators_of_the_exporter()
    plan_stage, plans = Planner.plan_stage, dict[str, StagePlan]()

    def plan_once(self: Planner, recipe: Recipe, stage: str, batch_size: int) -> StagePlan:
        """Planning takes seconds, and most of these runs differ in what no plan depends on."""
        of_planner = self.inputs, self.device, self.windows, self.validation_windows
        key = repr((of_planner, recipe.data, recipe.model, recipe.train, recipe.validate, recipe.quant, stage, batch_size))
        if key not in plans:
            plans[key] = plan_stage(self, recipe, stage, batch_size)
        return plans[key]

    def do(recipe: str, folder: Path, *overrides: str, resume: bool = False) -> Run:
        console = Console(file=io.StringIO(), width=200)
        loaded = load_recipe(ROOT / "recipes" / recipe, [*overrides, f"out={folder}", "export.publish=false"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Planner, "plan_stage", plan_once)
            run(loaded, resume=resume, console=console)
        assert isinstance(console.file, io.StringIO)
        return Run(folder, console.file.getvalue(), json.loads((folder / "summary.json").read_text()))

    return do
