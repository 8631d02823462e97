"""tftq plan: what a recipe will need in memory, without running it, and what would make it need less."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.agents.plan import buffer_bytes, planned_policy_export, planned_training, trained_parameters
from tftq.agents.recipe import AgentRecipe
from tftq.agents.rewards import EVALUATED
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.data.windows import Datasets
from tftq.errors import PlanError, RecipeError
from tftq.memory.components import MIB
from tftq.memory.ledger import COMPONENTS
from tftq.plan.export import WINDOWS, planned_export
from tftq.plan.peaks import CUDA_CONTEXT, PlannedPeak
from tftq.plan.training import Planner, StagePlan
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import MemoryRecipe, Recipe, RunRecipe
from tftq.train.precision import Name
from tftq.train.stages import stages_of

WORTH_TELLING = 0.01  # of the peak, below which a change is no advice


@dataclass(frozen=True)
class Phase:
    """A phase of a run and what it needs.

    Attributes:
        phase: train, qat, validate or export.
        title: the phase, and the format of an export.
        batch_size: windows at a time.
        peak: of tensors; of an export, in host memory.
        budget_bytes: what it may need beside what the device takes for itself; None where it does not count: it needs no memory of the
            device, or what is known is an upper bound that training may prove far too high.
    """

    phase: str
    title: str
    batch_size: int
    peak: PlannedPeak
    budget_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether it stays within the budget."""
        return self.budget_bytes is None or self.peak.peak_bytes <= self.budget_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        peak = {"peak_bytes": self.peak.peak_bytes, "components": {name: self.peak.components[name] for name in COMPONENTS}}
        return {"phase": self.phase, "title": self.title, "batch_size": self.batch_size, "fits": self.fits, **peak}


def phases_of(recipe: Recipe, planner: Planner, plans: Mapping[str, StagePlan]) -> list[Phase]:
    """Every phase of a run in its order, one for each exported format.

    Args:
        recipe: what is run.
        planner: for its data and device.
        plans: of the stages of training.
    """
    budget = recipe.memory.budget_mb * MIB - planner.allowance_bytes
    phases = [Phase(stage, stage, plan.batch_size, plan.update, budget) for stage, plan in plans.items()]
    plan = max(plans.values(), key=lambda plan: planner.validation(recipe, plan).peak_bytes)
    on_cpu = planner.validates_on_cpu(recipe, plan)
    phases.append(Phase("validate", "validate", plan.validation_batch, planner.validation(recipe, plan), None if on_cpu else budget))
    size = planner.deployed_size(recipe)
    exact = recipe.model.kind != "tft" or recipe.model.form == "knots"  # of other forms training tells how many knots they need
    on_device = budget if planner.device.type == "cpu" and exact else None
    for kind in recipe.formats:
        peak = planned_export(recipe, kind, weights=size.weights, knots=size.knots, kept=size.kept)
        phases.append(Phase("export", f"export {kind}", WINDOWS, peak, on_device))
    return phases


def agent_phases(recipe: AgentRecipe, data: Datasets, device: torch.device) -> list[Phase]:
    """As `phases_of`, of the run of an agent; on a CPU, its transitions are part of the workspace of training.

    Args:
        recipe: what is run.
        data: that it learns from.
        device: where; it need not be there to plan for it.
    """
    agent, inputs, on_cpu = recipe.agent, data.train.inputs, device.type == "cpu"
    budget = recipe.memory.budget_mb * MIB - allowance_of(device)
    update, validation = planned_training(agent, inputs, data.scaling.history.at(inputs.history_places), device)
    train = update.plus("workspace", buffer_bytes(agent, inputs)) if on_cpu else update
    phases = [
        Phase("train", "train", agent.batch_size, train, budget),
        Phase("validate", "validate", EVALUATED, validation, budget),
    ]
    for kind in recipe.quant.formats:
        phases.append(Phase("export", f"export {kind}", WINDOWS, planned_policy_export(agent, inputs, kind), budget if on_cpu else None))
    return phases


def allowance_of(device: torch.device) -> int:
    """What a device holds beside tensors."""
    return CUDA_CONTEXT if device.type == "cuda" else 0


def require_fit(memory: MemoryRecipe, phases: Sequence[Phase], allowance_bytes: int) -> None:
    """Refuse a plan over the budget, with its table, or warn of it where the recipe wants it run.

    Args:
        memory: the budget, and what to do where it does not suffice.
        phases: of the run.
        allowance_bytes: what the device holds beside tensors.

    Raises:
        PlanError: a phase does not fit and `memory.over_budget` is stop.
    """
    over = [phase.title for phase in phases if not phase.fits]
    if not over:
        return
    problem = f"the planned peak of {', '.join(over)} is above memory.budget_mb {memory.budget_mb}"
    if memory.over_budget == "run":
        warnings.warn(f"{problem}; memory.over_budget is run, so it is tried all the same", stacklevel=3)
        return
    raise PlanError(
        f"{problem}, with forward passes as small as they can be:\n{as_text(table_of(phases, allowance_bytes))}\n"
        "see 'tftq plan RECIPE' for what would help; memory.over_budget=run tries it all the same"
    )


def table_of(phases: Sequence[Phase], allowance_bytes: int) -> Table:
    """A row a phase."""
    beside = f", beside {allowance_bytes / MIB:.0f} for CUDA itself (an allowance)" if allowance_bytes else ""
    table = Table(title=f"Planned memory at each phase's peak, MiB{beside}", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("phase", no_wrap=True)
    for name in ("batch", *(component.replace("_", " ") for component in COMPONENTS), "peak", "budget"):
        table.add_column(name, justify="right")
    for phase in phases:
        sizes = [f"{phase.peak.components[name] / MIB:,.1f}" for name in COMPONENTS]
        table.add_row(phase.title, str(phase.batch_size), *sizes, f"{phase.peak.peak_bytes / MIB:,.1f}", _verdict(phase))
    return table


def _verdict(phase: Phase) -> str:
    if phase.budget_bytes is None:
        return "not counted"
    beyond = phase.peak.peak_bytes - phase.budget_bytes
    return "fits" if beyond <= 0 else f"over by {beyond / MIB:,.1f}"


def as_text(table: Table) -> str:
    """The table as plain text."""
    console = Console(io.StringIO())
    console.print_table(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()


def peaks_by_precision(recipe: Recipe, planner: Planner, known: StagePlan) -> dict[Name, int]:
    """The peak of training in each number format, in bytes."""
    names: tuple[Name, ...] = get_args(Name)

    def peak(name: Name) -> int:
        if name == recipe.train.precision:
            return known.update.peak_bytes
        changed = recipe.model_copy(update={"train": recipe.train.model_copy(update={"precision": name})})
        return planner.plan_stage(changed, "train", known.batch_size).update.peak_bytes

    return {name: peak(name) for name in names}


@dataclass(frozen=True)
class Advice:
    """A change of the recipe, as one would write it on the command line, and what it saves of the peak of the stages of training."""

    change: str
    saved_bytes: int
    peak_bytes: int


def advice(
    path: Path,
    overrides: Sequence[str],
    recipe: Recipe,
    planner: Planner,
    plans: Mapping[str, StagePlan],
    trying: Callable[[str], None],
) -> list[Advice]:
    """The changes that lower the peak, that which saves most first; the recipe with each of them is planned, and told of before."""
    before = _peak(recipe, planner, plans)
    found = []
    for changes in _changes(recipe):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of options that have no effect any more
                changed = load_recipe(path, [*_others(overrides, changes), *changes])
        except RecipeError:  # it contradicts another option, or there is no such option
            continue
        trying(" ".join(changes))
        after = _peak(changed, planner, planner.plan(changed)) if changed != recipe else before
        if after < (1 - WORTH_TELLING) * before:
            found.append(Advice(" ".join(changes), before - after, after))
    return sorted(found, key=lambda entry: entry.peak_bytes)


def _others(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The overrides that set something else than the changes do: each option may be given once."""
    changed = {change.split("=")[0] for change in changes}
    return [override for override in overrides if override.split("=")[0] not in changed]


def _peak(recipe: Recipe, planner: Planner, plans: Mapping[str, StagePlan]) -> int:
    return max(planner.needed_bytes(recipe, plan) for plan in plans.values()) - planner.allowance_bytes


def _changes(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """What may help, each as the words of a command line."""
    model, train = recipe.model, recipe.train
    if train.batch_size % 2 == 0:
        same_update = () if train.optimizer.in_backward else (f"train.accumulate={2 * train.accumulate}",)
        yield f"train.batch_size={train.batch_size // 2}", *same_update
    if recipe.validate.batch_size is not None and recipe.validate.batch_size > train.batch_size:
        yield (f"validate.batch_size={train.batch_size}",)
    if train.precision == "fp32":
        yield ("train.precision=bf16",)
    if model.hidden % 2 == 0:
        yield (f"model.hidden={model.hidden // 2}",)
    if model.kind == "tft":
        if model.form != "knots":
            yield ("model.form=knots",)
        elif model.knots > 8:
            yield (f"model.knots={model.knots // 2}",)
        yield ("model.gates=shared",)
    else:
        if model.layers % 2 == 0:
            yield (f"model.layers={model.layers // 2}",)
        if (rows := min(model.chunk, recipe.data.lookback + recipe.data.horizon)) > 1:
            yield (f"model.chunk={-(-rows // 2)}",)
    yield ("train.optimizer.name=adamw8bit",)
    yield "train.optimizer.in_backward=true", "train.clip_norm=null"


def plan_forecaster(recipe: Recipe, path: Path, overrides: Sequence[str], say: Console, progress: Console) -> dict[str, Any]:
    """Plan the run of a forecaster and print each part as soon as it is known.

    Args:
        recipe: what is planned.
        path: where it was read.
        overrides: that it was read with; advice is tried with others.
        say: where the plan goes.
        progress: where it says what takes its time.

    Returns:
        The plan in plain types.
    """

    def begin(what: str) -> None:
        progress.print_line(f"{what} …", style="dim")

    begin(f"reading {recipe.data.path}")
    data = load_datasets(recipe.data)
    device = _device_of(recipe)
    counts = len(data.train), len(data.validation)
    planner = Planner(data.train.inputs, data.scaling, data.target_scaling, device, *counts)
    begin(f"planning {' and '.join(stages_of(recipe))}")
    plans = planner.plan(recipe)
    phases = phases_of(recipe, planner, plans)
    say.print_table(table_of(phases, planner.allowance_bytes))
    begin("planning train in each precision")
    precisions = peaks_by_precision(recipe, planner, plans["train"])
    formats = ", ".join(f"{name} {size / MIB:,.1f}" for name, size in precisions.items())
    say.print_line(f"peak of train by train.precision, MiB: {formats}")

    over = _tell_whether_it_fits(phases, recipe.memory, device, say)
    if over:
        begin("looking for the largest batch that fits")
    largest = planner.largest_batches(recipe, plans)
    tips: list[Advice] = []
    if over:
        sizes = ", ".join(f"{stage} {size or 'none'}" for stage, size in largest.items())
        lowered = any(0 < size < recipe.train.batch_size for size in largest.values())
        by_itself = "; a run forwards the windows of an update in batches of that size by itself" if lowered else ""
        say.print_line(f"largest batch that fits: {sizes}{by_itself}")
        tips = advice(path, overrides, recipe, planner, plans, lambda change: begin(f"trying {change}"))
        for tip in tips:
            verdict = "fits" if tip.peak_bytes + planner.allowance_bytes <= recipe.memory.budget_mb * MIB else "still over"
            say.print_line(f"  {tip.change}: {tip.peak_bytes / MIB:,.1f} MiB, saves {tip.saved_bytes / MIB:,.1f}, {verdict}")
    return {
        "fits": not over,
        "budget_bytes": recipe.memory.budget_mb * MIB,
        "device": device.type,
        "device_allowance_bytes": planner.allowance_bytes,
        "phases": [phase.as_dict() for phase in phases],
        "train_peak_bytes_by_precision": precisions,
        "largest_batch_size": largest,
        "advice": [asdict(tip) for tip in tips],
    }


def plan_agent(recipe: AgentRecipe, say: Console, progress: Console) -> dict[str, Any]:
    """As `plan_forecaster`, for an agent."""
    progress.print_line(f"reading {recipe.data.path} …", style="dim")
    data, device = load_datasets(recipe.data), _device_of(recipe)
    phases = agent_phases(recipe, data, device)
    say.print_table(table_of(phases, allowance_of(device)))
    parameters, transitions = trained_parameters(recipe.agent, data.train.inputs), buffer_bytes(recipe.agent, data.train.inputs)
    say.print_line(f"{parameters:,} trained parameters; transitions to learn from: {transitions / MIB:,.1f} MiB of host memory")
    over = _tell_whether_it_fits(phases, recipe.memory, device, say)
    return {
        "fits": not over,
        "budget_bytes": recipe.memory.budget_mb * MIB,
        "device": device.type,
        "device_allowance_bytes": allowance_of(device),
        "phases": [phase.as_dict() for phase in phases],
        "trained_parameters": parameters,
        "transitions_bytes": transitions,
    }


def _device_of(recipe: RunRecipe) -> torch.device:
    """Where a recipe asks to be run, whether it is there or not."""
    return torch.device("cuda" if recipe.device == "cuda" or (recipe.device == "auto" and torch.cuda.is_available()) else "cpu")


def _tell_whether_it_fits(phases: Sequence[Phase], memory: MemoryRecipe, device: torch.device, say: Console) -> list[str]:
    """The titles of the phases that do not fit."""
    over = [phase.title for phase in phases if not phase.fits]
    budget = f"memory.budget_mb {memory.budget_mb} on {device.type}"
    say.print_line(f"does not fit {budget}: {', '.join(over)}" if over else f"fits {budget}")
    return over
