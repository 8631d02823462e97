"""The run of an agent: from a recipe to a trained policy, quantized, checked, exported, and a report of what it came to."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from tftq.agents.export import ExportedPolicy, export_policy, quantized
from tftq.agents.plan import buffer_bytes, plan_phases, trained_parameters
from tftq.agents.policy import Policy
from tftq.agents.recipe import AgentRecipe
from tftq.agents.report import evaluation_line, planned_phase_line, policies_table
from tftq.agents.rewards import Earnings, Rewards
from tftq.console import Console
from tftq.data.columns import Inputs
from tftq.data.load import load_datasets
from tftq.data.windows import Datasets
from tftq.errors import AgentError, RunFolderError
from tftq.export.publish import PUBLISHED, origin, publish
from tftq.jobs.environment import device_of_torch, environment
from tftq.jobs.folder import RunFolder
from tftq.memory.ledger import ledgers, read_records, stack_at_peak
from tftq.memory.watch import MemoryWatch
from tftq.plan.phases import Phase, RunPlan
from tftq.report.page import write_report
from tftq.report.text import ledger_table, memory_line
from tftq.train.device import choose_device, seed_everything
from tftq.train.oom import explained

if TYPE_CHECKING:
    from tftq.agents.train import Evaluation

EXTRA = ("gymnasium", "stable_baselines3")


def run_agent(recipe: AgentRecipe, *, resume: bool = False, console: Console | None = None) -> dict[str, Any]:
    """Do everything an agent's recipe says.

    Args:
        recipe: what to do.
        resume: refused, see below.
        console: where to tell of it; standard output by default.

    Returns:
        What summary.json holds.

    Raises:
        AgentError: Stable-Baselines3 is not installed.
        RunFolderError: among others, to resume is asked for: neither a replay buffer nor where an episode stands is kept.
        TftqError: something else of the recipe, the data, the device or an exported model is not as it must be.
    """
    train = _trainer()
    if resume:
        raise RunFolderError(
            "the run of an agent cannot be resumed: the transitions it learns from are not kept; run it anew, out=<folder>"
        )
    say = console or Console()
    device = choose_device(recipe.device)
    seed_everything(recipe.seed)
    data = load_datasets(recipe.data)
    phases = plan_phases(recipe, data, device)
    RunPlan(phases, recipe.memory, device).require_fit()
    folder = RunFolder.open(recipe, environment(device_of_torch(device), recipe.seed), resume=False)
    watch = MemoryWatch(folder.path / "memory.jsonl", device)
    if watch.probe.note is not None:
        data.notes.append(watch.probe.note)
    _announce(recipe, device, data, phases, folder, say)

    def tell(found: "Evaluation") -> None:
        line = evaluation_line(found.epoch, found.steps, found.train_reward, found.val)
        say.print_line(line)

    with folder.recording(name=recipe.name, seed=recipe.seed):
        with explained("out of memory; lower agent.layers, agent.batch_size or agent.n_steps, or free memory"):
            began = time.perf_counter()
            policy, evaluations = train(recipe.agent, data, folder.path, watch, seed=recipe.seed, device=device, tell=tell)
            seconds = time.perf_counter() - began
            summary = _summary(recipe, device, data, evaluations[-1], seconds)
            exported = _export(recipe, policy, data, folder, say)
        baselines = summary["val"]["baselines"]
        summary["memory"] = _memory(recipe, data.train.inputs, phases, watch, folder, say)
        summary["models"] = {kind: made.summary() for kind, made in exported.items()}
        say.print_table(policies_table(exported, {name: Earnings(**found) for name, found in baselines.items()}))
        folder.write_json("summary.json", summary)
        report = write_report(folder.path)
    say.print_line(f"report: {report}")
    return summary


def _trainer() -> "Callable[..., tuple[Policy, list[Evaluation]]]":
    """What trains, of the extra that it takes.

    Raises:
        AgentError: the extra is not installed.
    """
    try:
        from tftq.agents.train import train_agent
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRA:
            raise
        raise AgentError(f"{package} is not installed, and agents are trained with it: pip install 'tftq[rl]'") from error
    return train_agent


def _announce(recipe: AgentRecipe, device: torch.device, data: Datasets, phases: list[Phase], folder: RunFolder, say: Console) -> None:
    say.print_line(f"{recipe.name} on {device}, into {folder.path}", style="bold")
    for note in data.notes:
        say.print_line(f"  {note}")
    inputs = data.train.inputs
    count = trained_parameters(recipe.agent, inputs)
    say.print_line(f"{recipe.agent.kind}: {count:,} parameters, {inputs.lookback} bars of {len(inputs.history)} columns")
    for phase in phases:
        say.print_line(planned_phase_line(phase.title, phase.peak.peak_bytes, recipe.memory.budget_mb))


def _summary(recipe: AgentRecipe, device: torch.device, data: Datasets, last: "Evaluation", seconds: float) -> dict[str, Any]:
    rewards = Rewards(data.validation, recipe.agent.cost_ticks, recipe.agent.tick)
    baselines = {name: asdict(rewards.held_throughout(position)) for name, position in (("buy and hold", 1), ("flat", 0))}
    return {
        "name": recipe.name,
        "status": "ok",
        "kind": recipe.agent.kind,
        "device": str(device),
        "seed": recipe.seed,
        "steps": last.steps,
        "updates": last.updates,
        "steps_per_s": last.steps / seconds,
        "trained_parameters": trained_parameters(recipe.agent, data.train.inputs),
        "val": {**asdict(last.val), "baselines": baselines},
        "notes": data.notes,
    }


def _export(recipe: AgentRecipe, policy: Policy, data: Datasets, folder: RunFolder, say: Console) -> dict[str, ExportedPolicy]:
    """Every format of the recipe, each through the gate, and published if it says so."""
    rewards = Rewards(data.validation, recipe.agent.cost_ticks, recipe.agent.tick)
    metadata = {"kind": recipe.agent.kind, **origin(recipe, data.train)}
    exported: dict[str, ExportedPolicy] = {}
    for kind in recipe.quant.formats:
        made = quantized(policy, recipe.quant, data.train) if kind == "int8_ptq" else policy
        exported[kind] = export_policy(made, policy, kind, folder.path / "exports", data.validation, rewards, metadata=metadata)
        size, share = exported[kind].file_bytes / 1e6, exported[kind].agreement
        say.print_line(f"{kind}: passed the gate, {size:.2f} MB, {share:.2%} of the positions as trained")
    if recipe.export.publish:
        publish(exported, PUBLISHED / recipe.name)
        say.print_line(f"published: {', '.join(exported)} in {PUBLISHED / recipe.name}")
    return exported


def _memory(
    recipe: AgentRecipe, inputs: Inputs, phases: list[Phase], watch: MemoryWatch, folder: RunFolder, say: Console
) -> dict[str, Any]:
    """What the run held and when, told and for summary.json."""
    records = read_records(folder.path / "memory.jsonl")
    found = ledgers(records, recipe.memory.budget_mb)
    for stage, ledger in found.items():
        say.print_table(ledger_table(stage, ledger))
    planned = {phase.phase: phase.peak.peak_bytes for phase in phases}
    if watch.probe.source == "counter":  # which counts tensors; transitions are arrays
        planned["train"] -= buffer_bytes(recipe.agent, inputs)
    peak = max(planned["train"], planned["validate"])
    say.print_line(memory_line(watch.timeline, peak))
    return {
        **watch.timeline.summary(),
        "planned_peak_bytes": peak,
        "components": stack_at_peak(records),
        "ledger": {stage: ledger.as_dict() for stage, ledger in found.items()},
    }
