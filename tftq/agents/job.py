"""Run an agent's recipe: train a policy, quantize, export and check it, and report."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tftq.agents.export import ExportedPolicy, export_policy, quantize
from tftq.agents.plan import buffer_bytes, plan_phases, trained_parameters
from tftq.agents.policy import Policy
from tftq.agents.recipe import AgentRecipe
from tftq.agents.report import evaluation_line, planned_phase_line, policies_table, write_report
from tftq.agents.rewards import Rewards
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.errors import AgentError, RunFolderError
from tftq.export.publish import origin
from tftq.jobs.training import TrainingJob
from tftq.plan.phases import RunPlan
from tftq.recipe.load import recipe_hash
from tftq.spec.formats import FORMATS
from tftq.spec.summary import AgentSummary
from tftq.train.device import choose_device, seed_everything

if TYPE_CHECKING:
    from tftq.agents.train import Evaluation

EXTRA = ("gymnasium", "stable_baselines3")


def run_agent(recipe: AgentRecipe, *, resume: bool = False, console: Console | None = None) -> AgentSummary:
    """Run a recipe of an agent.

    Args:
        recipe: of the run.
        resume: refused, see below.
        console: where to print; standard output by default.

    Returns:
        The content of summary.json.

    Raises:
        AgentError: Stable-Baselines3 is not installed.
        RunFolderError: among others, on `resume`: neither the replay buffer nor the state of an episode is kept.
        TftqError: the recipe, the data, the device or an exported model cannot be used.
    """
    train = _trainer()
    if resume:
        raise RunFolderError(
            "the run of an agent cannot be resumed: the transitions it learns from are not kept; run it anew, out=<folder>"
        )
    device = choose_device(recipe.device)
    seed_everything(recipe.seed)
    data = load_datasets(recipe.data)
    plan = RunPlan(plan_phases(recipe, data, device), recipe.memory, device)
    job = TrainingJob.open(recipe, device, data, plan, resume=False, console=console)
    _announce_plan(job)
    advice = "out of memory; lower agent.layers, agent.batch_size or agent.n_steps, or free memory"
    return job.train(lambda: _carry_out(job, train), write_report, advice=advice)


def _carry_out(job: TrainingJob[AgentRecipe], train: "Callable[..., tuple[Policy, list[Evaluation]]]") -> AgentSummary:
    """Train, export every format, and summarize."""
    recipe, data = job.recipe, job.data

    def report(evaluation: "Evaluation") -> None:
        job.console.print_line(evaluation_line(evaluation.epoch, evaluation.steps, evaluation.train_reward, evaluation.val))

    began = time.perf_counter()
    policy, evaluations = train(recipe.agent, data, job.folder.path, job.watch, seed=recipe.seed, device=job.device, report=report)
    seconds = time.perf_counter() - began
    rewards = Rewards(data.validation, recipe.agent.cost_ticks, recipe.agent.tick)
    baselines = {name: rewards.hold(position) for name, position in (("buy and hold", 1), ("flat", 0))}
    exported = _export(job, policy, rewards)
    memory = job.memory_summary(_planned_peak(job))
    job.console.print_table(policies_table(exported, baselines))
    last = evaluations[-1]
    return AgentSummary(
        name=recipe.name,
        kind=recipe.agent.kind,
        device=str(job.device),
        seed=recipe.seed,
        steps=last.steps,
        updates=last.updates,
        steps_per_s=last.steps / seconds,
        trained_parameters=trained_parameters(recipe.agent, data.train.inputs),
        val={**asdict(last.val), "baselines": {name: asdict(earnings) for name, earnings in baselines.items()}},
        notes=data.notes,
        memory=memory,
        models={kind: made.summary() for kind, made in exported.items()},
    )


def _trainer() -> "Callable[..., tuple[Policy, list[Evaluation]]]":
    """Import the training module, which needs an extra.

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


def _announce_plan(job: TrainingJob[AgentRecipe]) -> None:
    """Print the size of the networks and the planned peaks."""
    agent, inputs = job.recipe.agent, job.data.train.inputs
    count = trained_parameters(agent, inputs)
    job.console.print_line(f"{agent.kind}: {count:,} parameters, {inputs.lookback} bars of {len(inputs.history)} columns")
    for phase in job.plan.phases:
        job.console.print_line(planned_phase_line(phase.title, phase.peak.peak_bytes, job.recipe.memory.budget_mb))


def _export(job: TrainingJob[AgentRecipe], policy: Policy, rewards: Rewards) -> dict[str, ExportedPolicy]:
    """Export every format of the recipe, each through the gate, and publish them if the recipe says so."""
    recipe, data = job.recipe, job.data
    algorithm, source = recipe.agent.kind, origin(recipe.name, recipe_hash(recipe), recipe.data, data.train)
    exported: dict[str, ExportedPolicy] = {}
    for kind in recipe.quant.formats:
        made = quantize(policy, recipe.quant, data.train) if FORMATS[kind].multiplies_integers else policy
        exported[kind] = export_policy(
            made, policy, kind, job.folder.path / "exports", data.validation, rewards, algorithm=algorithm, origin=source
        )
        size, share = exported[kind].file_bytes / 1e6, exported[kind].agreement
        job.console.print_line(f"{kind}: passed the gate, {size:.2f} MB, {share:.2%} of the positions as trained")
    if recipe.export.publish:
        job.publish(exported)
    return exported


def _planned_peak(job: TrainingJob[AgentRecipe]) -> int:
    """Return the planned peak, in bytes, of the memory that the run's probe counts."""
    planned = {phase.phase: phase.peak.peak_bytes for phase in job.plan.phases}
    if job.watch.probe.source == "counter":  # which counts tensors; transitions are arrays
        planned["train"] -= buffer_bytes(job.recipe.agent, job.data.train.inputs)
    return max(planned["train"], planned["validate"])
