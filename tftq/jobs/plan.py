"""Plan the memory of a forecaster's recipe without running it, and look for changes that would reduce it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.plan.advice import Advice, advise, peaks_by_precision
from tftq.plan.phases import RunPlan, plan_phases, requested_device
from tftq.plan.training import Planner
from tftq.recipe.schema import Recipe
from tftq.spec.units import MIB
from tftq.train.stages import stages_of


def plan_forecaster(recipe: Recipe, path: Path, overrides: Sequence[str], console: Console, progress: Console) -> dict[str, Any]:
    """Plan the run of a forecaster and print each part as soon as it is known.

    Args:
        recipe: of the run.
        path: where it was read.
        overrides: that it was read with.
        console: where to print the plan.
        progress: the console for steps that take long.

    Returns:
        The plan in plain types.
    """
    print_step(progress, f"reading {recipe.data.path}")
    data = load_datasets(recipe.data)
    device = requested_device(recipe)
    planner = Planner(data.train.inputs, data.scaling, data.target_scaling, device, len(data.train), len(data.validation))
    print_step(progress, f"planning {' and '.join(stages_of(recipe))}")
    plans = planner.plan(recipe)
    plan = RunPlan(plan_phases(recipe, planner, plans), recipe.memory, device)
    console.print_table(plan.table())
    print_step(progress, "planning train in each precision")
    precisions = peaks_by_precision(recipe, planner, plans["train"])
    formats = ", ".join(f"{name} {size / MIB:,.1f}" for name, size in precisions.items())
    console.print_line(f"peak of train by train.precision, MiB: {formats}")

    console.print_line(plan.verdict)
    if plan.over:
        print_step(progress, "looking for the largest batch that fits")
    largest = planner.largest_batches(recipe, plans)
    advice: list[Advice] = []
    if plan.over:
        console.print_line(_largest_line(recipe, largest))
        advice = advise(path, overrides, recipe, planner, plans, lambda change: print_step(progress, f"trying {change}"))
        for tip in advice:
            verdict = "fits" if tip.peak_bytes + planner.allowance_bytes <= recipe.memory.budget_mb * MIB else "still over"
            console.print_line(f"  {tip.change}: {tip.peak_bytes / MIB:,.1f} MiB, saves {tip.saved_bytes / MIB:,.1f}, {verdict}")
    return {
        **plan.as_dict(),
        "train_peak_bytes_by_precision": precisions,
        "largest_batch_size": largest,
        "advice": [asdict(tip) for tip in advice],
    }


def print_step(progress: Console, step: str) -> None:
    """Print the current step, where it takes long."""
    progress.print_line(f"{step} …", style="dim")


def _largest_line(recipe: Recipe, largest: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{stage} {size or 'none'}" for stage, size in largest.items())
    lowered = any(0 < size < recipe.train.batch_size for size in largest.values())
    by_itself = "; a run forwards the windows of an update in batches of that size by itself" if lowered else ""
    return f"largest batch that fits: {sizes}{by_itself}"
