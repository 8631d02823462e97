"""Plan the memory of an agent's run from its settings: an update on fake tensors, and the transitions that it learns from."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.agents.policy import Observations, Policy, layer_sizes, observation_size
from tftq.agents.recipe import AgentRecipe, DqnRecipe, PpoRecipe
from tftq.agents.rewards import EVALUATED, POSITIONS
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.data.scaling import ColumnScaling
from tftq.data.windows import Datasets
from tftq.jobs.plan import print_step
from tftq.plan.export import EXPORT_WINDOWS
from tftq.plan.peaks import ALLOCATOR_BLOCK, CUBLAS_WORKSPACE, PlannedPeak, plan_peaks
from tftq.plan.phases import Phase, RunPlan, allowance_bytes, requested_device
from tftq.spec.formats import FORMATS, Format
from tftq.spec.inputs import Inputs
from tftq.spec.units import MIB

FLOAT = 4  # bytes
TRANSITION_BYTES = 14  # in the replay buffer, see `tftq.agents.replay`
CRITIC = 1  # outputs of PPO's second network


def trained_parameters(agent: DqnRecipe | PpoRecipe, inputs: Inputs) -> int:
    """Count the parameters that are trained: of the network that decides, and with PPO of the critic.

    In FP32, with their gradients and Adam's two moments, sixteen bytes each.

    Args:
        agent: its settings.
        inputs: the columns and the lookback.
    """
    return sum(_parameters(agent, inputs, outputs) for outputs in _algorithm(agent, inputs).trained)


def buffer_bytes(agent: DqnRecipe | PpoRecipe, inputs: Inputs) -> int:
    """Return the bytes of host memory that the transitions take."""
    return _algorithm(agent, inputs).transitions_bytes


def plan_training(
    agent: DqnRecipe | PpoRecipe, inputs: Inputs, scaling: ColumnScaling, device: torch.device
) -> tuple[PlannedPeak, PlannedPeak]:
    """Plan the peaks of an update and of an evaluation.

    Args:
        agent: its settings.
        inputs: the columns and the lookback.
        scaling: of the history's columns.
        device: where it will be trained; it need not be there to plan for it.
    """
    cuda = device.type == "cuda"

    def make_steps() -> Sequence[Callable[[], object]]:
        return _steps(agent, inputs, scaling)

    _, update, validation = plan_peaks(make_steps, rounding=ALLOCATOR_BLOCK if cuda else 1)
    if cuda:
        update, validation = (peak.plus("workspace", CUBLAS_WORKSPACE) for peak in (update, validation))
    return update, validation


def plan_policy_export(agent: DqnRecipe | PpoRecipe, inputs: Inputs, kind: Format) -> PlannedPeak:
    """Plan the host memory that building a file takes: the policy, the copy that is written, the graph and its bytes."""
    weights = _parameters(agent, inputs, len(POSITIONS))
    size = 1 if FORMATS[kind].stores_integers else FLOAT
    components = {"parameters": 2 * FLOAT * weights, "workspace": 2 * size * weights}
    return PlannedPeak(sum(components.values()), {**dict.fromkeys(("gradients", "optimizer", "activations", "left_over"), 0), **components})


def _parameters(agent: DqnRecipe | PpoRecipe, inputs: Inputs, outputs: int) -> int:
    return sum((before + 1) * after for before, after in layer_sizes(inputs, agent.layers, outputs))


class _Algorithm(NamedTuple):
    """The part of a training's needs that depends on the algorithm.

    Attributes:
        trained: outputs of each network that is trained, the one that decides first.
        asked: outputs of each network that is only asked.
        transitions_bytes: in host memory.
        seen: observations of each transition that an update holds.
        loss: of the networks, trained ones first, and an update's data; as Stable-Baselines3 computes it.
    """

    trained: tuple[int, ...]
    asked: tuple[int, ...]
    transitions_bytes: int
    seen: int
    loss: Callable[[Sequence[Policy], Sequence[Observations]], Tensor]


def _algorithm(agent: DqnRecipe | PpoRecipe, inputs: Inputs) -> _Algorithm:
    positions = len(POSITIONS)
    if agent.kind == "dqn":
        return _Algorithm((positions,), (positions,), TRANSITION_BYTES * agent.buffer_size, 2, _q_loss)
    return _Algorithm((positions, CRITIC), (), FLOAT * observation_size(inputs) * agent.n_steps, 1, _actor_critic_loss)


def _q_loss(networks: Sequence[Policy], held: Sequence[Observations]) -> Tensor:
    (decides, target), (now, following) = networks, held
    with torch.no_grad():
        value = target(*following).amax(1)
    return F.smooth_l1_loss(decides(*now).gather(1, torch.zeros(len(value), 1, dtype=torch.int64))[:, 0], value)


def _actor_critic_loss(networks: Sequence[Policy], held: Sequence[Observations]) -> Tensor:
    (actor, critic), (now,) = networks, held
    scaled = actor.observation(*now)
    loss: Tensor = actor.layers(scaled).log_softmax(1).mean() + critic.layers(scaled).square().mean()
    return loss


def _steps(agent: DqnRecipe | PpoRecipe, inputs: Inputs, scaling: ColumnScaling) -> Sequence[Callable[[], object]]:
    """Return two updates, where the first makes the optimizer's state, and an evaluation."""

    def network(outputs: int) -> Policy:
        layers = [module for sizes in layer_sizes(inputs, agent.layers, outputs) for module in (nn.Linear(*sizes), nn.ReLU())]
        return Policy(inputs, scaling, nn.Sequential(*layers[:-1]))

    def seen(count: int) -> Observations:
        return Observations(torch.zeros(count, inputs.lookback, len(inputs.history)), torch.zeros(count, 1))

    algorithm = _algorithm(agent, inputs)
    networks = [network(outputs) for outputs in (*algorithm.trained, *algorithm.asked)]
    trained = [parameter for learns in networks[: len(algorithm.trained)] for parameter in learns.parameters()]
    optimizer = torch.optim.Adam(trained)

    def update() -> None:
        held = [seen(agent.batch_size) for _ in range(algorithm.seen)]
        loss = algorithm.loss(networks, held)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    def evaluation() -> None:
        with torch.no_grad():
            networks[0](*seen(EVALUATED))

    return update, update, evaluation


def plan_phases(recipe: AgentRecipe, data: Datasets, device: torch.device) -> list[Phase]:
    """Plan every phase of an agent's run; on a CPU, its transitions are part of the workspace of training.

    Args:
        recipe: of the run.
        data: that it learns from.
        device: where; it need not be there to plan for it.
    """
    agent, inputs, on_cpu = recipe.agent, data.train.inputs, device.type == "cpu"
    budget = recipe.memory.budget_mb * MIB - allowance_bytes(device)
    update, validation = plan_training(agent, inputs, data.scaling.history.at(inputs.history_places), device)
    train = update.plus("workspace", buffer_bytes(agent, inputs)) if on_cpu else update
    phases = [
        Phase("train", "train", agent.batch_size, train, budget),
        Phase("validate", "validate", EVALUATED, validation, budget),
    ]
    for kind in recipe.quant.formats:
        phases.append(
            Phase("export", f"export {kind}", EXPORT_WINDOWS, plan_policy_export(agent, inputs, kind), budget if on_cpu else None)
        )
    return phases


def plan_agent(recipe: AgentRecipe, console: Console, progress: Console) -> dict[str, Any]:
    """Plan the run of an agent and print it.

    Args:
        recipe: of the run.
        console: where to print the plan.
        progress: the console for steps that take long.

    Returns:
        The plan in plain types.
    """
    print_step(progress, f"reading {recipe.data.path}")
    data, device = load_datasets(recipe.data), requested_device(recipe)
    plan = RunPlan(plan_phases(recipe, data, device), recipe.memory, device)
    console.print_table(plan.table())
    inputs = data.train.inputs
    parameters, transitions = trained_parameters(recipe.agent, inputs), buffer_bytes(recipe.agent, inputs)
    console.print_line(f"{parameters:,} trained parameters; transitions to learn from: {transitions / MIB:,.1f} MiB of host memory")
    console.print_line(plan.verdict)
    return {**plan.as_dict(), "trained_parameters": parameters, "transitions_bytes": transitions}
