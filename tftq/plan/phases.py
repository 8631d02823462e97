"""The phases of a run, the peak of each, and whether it fits the budget."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.console import Console
from tftq.errors import PlanError
from tftq.memory.ledger import COMPONENTS
from tftq.plan.export import EXPORT_WINDOWS, plan_export
from tftq.plan.peaks import CUDA_CONTEXT, PlannedPeak
from tftq.plan.training import Planner, StagePlan
from tftq.recipe.schema import MemoryRecipe, Recipe, RunRecipe
from tftq.spec.units import MIB


@dataclass(frozen=True)
class Phase:
    """A phase of a run and its memory.

    Attributes:
        phase: train, prune, qat, validate or export.
        title: the phase, and the format of an export.
        batch_size: windows at a time.
        peak: of tensors; of an export, in host memory.
        budget_bytes: its limit, beside the device's own overhead; None where it does not count: it needs no memory of the
            device, or the estimate is an upper bound that training may prove far too high.
    """

    phase: str
    title: str
    batch_size: int
    peak: PlannedPeak
    budget_bytes: int | None

    @property
    def fits(self) -> bool:
        """Return whether it stays within the budget."""
        return self.budget_bytes is None or self.peak.peak_bytes <= self.budget_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        peak = {"peak_bytes": self.peak.peak_bytes, "components": {name: self.peak.components[name] for name in COMPONENTS}}
        return {"phase": self.phase, "title": self.title, "batch_size": self.batch_size, "fits": self.fits, **peak}


@dataclass(frozen=True)
class RunPlan:
    """The phases of a run beside its budget.

    Args:
        phases: in their order.
        memory: the budget, and what to do where it does not suffice.
        device: where the run computes; it need not be there to plan for it.
    """

    phases: Sequence[Phase]
    memory: MemoryRecipe
    device: torch.device

    @property
    def over(self) -> list[str]:
        """Return the titles of the phases that do not fit."""
        return [phase.title for phase in self.phases if not phase.fits]

    @property
    def verdict(self) -> str:
        """Describe in a line whether everything fits."""
        budget = f"memory.budget_mb {self.memory.budget_mb} on {self.device.type}"
        return f"does not fit {budget}: {', '.join(self.over)}" if self.over else f"fits {budget}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {
            "fits": not self.over,
            "budget_bytes": self.memory.budget_mb * MIB,
            "device": self.device.type,
            "device_allowance_bytes": allowance_bytes(self.device),
            "phases": [phase.as_dict() for phase in self.phases],
        }

    def require_fit(self) -> None:
        """Refuse a plan over the budget, with its table, or warn where the recipe wants it run.

        Raises:
            PlanError: a phase does not fit and `memory.over_budget` is stop.
        """
        if not self.over:
            return
        problem = f"the planned peak of {', '.join(self.over)} is above memory.budget_mb {self.memory.budget_mb}"
        if self.memory.over_budget == "run":
            warnings.warn(f"{problem}; memory.over_budget is run, so it is tried all the same", stacklevel=4)
            return
        text = io.StringIO()
        Console(text).print_table(self.table())
        raise PlanError(
            f"{problem}, with forward passes as small as they can be:\n{text.getvalue().rstrip()}\n"
            "see 'tftq plan RECIPE' for what would help; memory.over_budget=run tries it all the same"
        )

    def table(self) -> Table:
        """Make a table with a row for each phase."""
        allowance = allowance_bytes(self.device)
        beside = f", beside {allowance / MIB:.0f} for CUDA itself (an allowance)" if allowance else ""
        table = Table(title=f"Planned memory at each phase's peak, MiB{beside}", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("phase", no_wrap=True)
        for name in ("batch", *(component.replace("_", " ") for component in COMPONENTS), "peak", "budget"):
            table.add_column(name, justify="right")
        for phase in self.phases:
            sizes = [f"{phase.peak.components[name] / MIB:,.1f}" for name in COMPONENTS]
            table.add_row(phase.title, str(phase.batch_size), *sizes, f"{phase.peak.peak_bytes / MIB:,.1f}", _verdict(phase))
        return table


def plan_phases(recipe: Recipe, planner: Planner, plans: Mapping[str, StagePlan]) -> list[Phase]:
    """Plan every phase of a forecaster's run, one for each exported format.

    Args:
        recipe: of the run.
        planner: for its data and device.
        plans: of the stages of training.

    Returns:
        The phases in their order.
    """
    budget = recipe.memory.budget_mb * MIB - planner.allowance_bytes
    phases = [Phase(stage, stage, plan.batch_size, plan.update, budget) for stage, plan in plans.items()]
    plan = max(plans.values(), key=lambda plan: planner.validation(recipe, plan).peak_bytes)
    on_cpu = planner.validates_on_cpu(recipe, plan)
    phases.append(Phase("validate", "validate", plan.validation_batch, planner.validation(recipe, plan), None if on_cpu else budget))
    size = planner.deployed_size(recipe)
    exact = recipe.model.kind != "tft" or recipe.model.form == "knots"  # the number of knots of other forms is known only after training
    on_device = budget if planner.device.type == "cpu" and exact else None
    for kind in recipe.formats:
        peak = plan_export(recipe, kind, weights=size.weights, knots=size.knots, kept=size.kept)
        phases.append(Phase("export", f"export {kind}", EXPORT_WINDOWS, peak, on_device))
    return phases


def allowance_bytes(device: torch.device) -> int:
    """Return the bytes that a device holds beside tensors."""
    return CUDA_CONTEXT if device.type == "cuda" else 0


def requested_device(recipe: RunRecipe) -> torch.device:
    """Return the device of a recipe, present or not."""
    return torch.device("cuda" if recipe.device == "cuda" or (recipe.device == "auto" and torch.cuda.is_available()) else "cpu")


def _verdict(phase: Phase) -> str:
    if phase.budget_bytes is None:
        return "not counted"
    beyond = phase.peak.peak_bytes - phase.budget_bytes
    return "fits" if beyond <= 0 else f"over by {beyond / MIB:,.1f}"
