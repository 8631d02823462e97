"""Train an agent with Stable-Baselines3: DQN or PPO on the training part, evaluated on the validation part."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gymnasium.wrappers import TransformReward
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from tftq.agents.environment import TradingEnvironment
from tftq.agents.policy import Policy, ScaledObservation, observation_size, scores_of
from tftq.agents.recipe import DqnRecipe, PpoRecipe
from tftq.agents.replay import WindowReplayBuffer
from tftq.agents.rewards import Earnings, Rewards, measure_earnings
from tftq.data.scaling import ColumnScaling
from tftq.data.windows import Datasets
from tftq.errors import NonFiniteError
from tftq.memory.timeline import MemoryRecorder
from tftq.spec.inputs import Inputs
from tftq.train.checkpoint import save_checkpoint
from tftq.train.diagnose import not_finite_weights
from tftq.train.log import TrainingBar

CHECKPOINT = "last.pt"


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of an agent after a part of its training.

    Attributes:
        epoch: the part's number, from 1.
        steps: bars traded so far.
        updates: of the optimizer so far.
        train_reward: mean reward of a bar in this part, a log return, random positions among them.
        loss: of the last update; None before the first one.
        val: the policy's earnings on the validation windows, its best positions taken.
    """

    epoch: int
    steps: int
    updates: int
    train_reward: float
    loss: float | None
    val: Earnings


class FeaturesExtractor(BaseFeaturesExtractor):
    """Puts the scaling of the features into the networks that Stable-Baselines3 builds.

    Args:
        observation_space: as Stable-Baselines3 gives it.
        inputs: the columns and the lookback.
        scaling: of the history's columns.
    """

    def __init__(self, observation_space: Any, inputs: Inputs, scaling: ColumnScaling) -> None:
        super().__init__(observation_space, observation_size(inputs))
        self.scaled = ScaledObservation(scaling)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Args: observations of `TradingEnvironment`, in a batch. Returns: [batch, lookback · columns + 1]."""
        scaled: Tensor = self.scaled(observations["history"], observations["position"])
        return scaled


def build_learner(agent: DqnRecipe | PpoRecipe, data: Datasets, *, seed: int, device: torch.device) -> DQN | PPO:
    """Build the learner on the training windows.

    Rewards are divided by the standard deviation of the bars' returns over the training part, so that values are of size one.

    Args:
        agent: its settings.
        data: for the training windows and the scalings.
        seed: of the networks, the positions tried and the runs drawn.
        device: where the networks are.
    """
    rewards = Rewards(data.train, agent.cost_ticks, agent.tick)
    scale = float(data.target_scaling.scale[0])
    environment = TransformReward(TradingEnvironment(data.train, rewards), lambda reward: float(reward) / scale)
    layers = list(agent.layers)
    common: dict[str, Any] = {
        "policy": "MultiInputPolicy",
        "env": environment,
        "learning_rate": agent.lr,
        "gamma": agent.gamma,
        "batch_size": agent.batch_size,
        "seed": seed,
        "device": device,
    }
    policy: dict[str, Any] = {
        "activation_fn": nn.ReLU,
        "features_extractor_class": FeaturesExtractor,
        "features_extractor_kwargs": {"inputs": data.train.inputs, "scaling": _scaling(data)},
    }
    if agent.kind == "dqn":
        return DQN(
            **common,
            policy_kwargs={**policy, "net_arch": layers},
            buffer_size=agent.buffer_size,
            replay_buffer_class=WindowReplayBuffer,
            replay_buffer_kwargs={"windows": data.train},
            learning_starts=agent.learning_starts,
            train_freq=agent.train_freq,
            target_update_interval=agent.target_update_interval,
            exploration_fraction=agent.exploration_fraction,
            exploration_final_eps=agent.exploration_final_eps,
        )
    return PPO(
        **common,
        policy_kwargs={**policy, "net_arch": {"pi": layers, "vf": layers}},
        n_steps=agent.n_steps,
        n_epochs=agent.n_epochs,
        clip_range=agent.clip_range,
        ent_coef=agent.ent_coef,
        vf_coef=agent.vf_coef,
        gae_lambda=agent.gae_lambda,
    )


def networks_of(learner: DQN | PPO) -> tuple[nn.Sequential, nn.Sequential]:
    """Return a learner's own layers after the scaled observation: of the network that decides, and of its target or critic."""
    policy = learner.policy
    if isinstance(learner, DQN):
        return policy.q_net.q_net, policy.q_net_target.q_net
    hidden = policy.mlp_extractor
    return nn.Sequential(*hidden.policy_net, policy.action_net), nn.Sequential(*hidden.value_net, policy.value_net)


def policy_of(learner: DQN | PPO, data: Datasets) -> Policy:
    """Build the policy that decides from the learner's own layers; it changes with them."""
    network, _ = networks_of(learner)
    return Policy(data.train.inputs, _scaling(data), network).to(learner.device)


def train_agent(
    agent: DqnRecipe | PpoRecipe,
    data: Datasets,
    folder: Path,
    watch: MemoryRecorder,
    *,
    seed: int,
    device: torch.device,
    report: Callable[[Evaluation], None],
) -> tuple[Policy, list[Evaluation]]:
    """Train an agent and write metrics.jsonl, memory.jsonl and checkpoints/ to a run folder.

    Args:
        agent: its settings.
        data: to train and to evaluate on.
        folder: of the run.
        watch: takes a record of memory for every phase.
        seed: two trainings of the same seed are equal.
        device: where to compute.
        report: called with every evaluation.

    Returns:
        The final policy, on the CPU and in eval mode, and every evaluation.

    Raises:
        NonFiniteError: a network's output or the loss is not finite; earlier evaluations are in the folder.
    """
    learner = build_learner(agent, data, seed=seed, device=device)
    policy = policy_of(learner, data)
    (folder / "checkpoints").mkdir(exist_ok=True)
    with watch.recording(learner.policy), TrainingBar(agent.kind, agent.evaluations, agent.steps // agent.evaluations, device) as bar:
        watch.follow(learner.policy, learner.policy.optimizer)
        course = _Course(agent, policy, data, folder, watch, bar, report)
        learner.learn(agent.steps, callback=course, log_interval=None)  # nothing is logged by itself
    return copy.deepcopy(policy).cpu().eval(), course.evaluations


class _Course(BaseCallback):
    """Divides the training into epochs, and ends each with an evaluation, a checkpoint, a line of metrics and its records of memory."""

    def __init__(
        self,
        agent: DqnRecipe | PpoRecipe,
        policy: Policy,
        data: Datasets,
        folder: Path,
        watch: MemoryRecorder,
        bar: TrainingBar,
        report: Callable[[Evaluation], None],
    ) -> None:
        super().__init__()
        self.evaluations: list[Evaluation] = []
        self._agent, self._policy, self._folder, self._bar, self._report = agent, policy, folder, bar, report
        self._timeline = watch.timeline
        self._validation = data.validation
        self._rewards = Rewards(data.validation, agent.cost_ticks, agent.tick)
        self._unit = float(data.target_scaling.scale[0])  # of a reward, as a log return
        self._reward, self._begun, self._seen = 0.0, 0, False

    def _on_training_start(self) -> None:
        outputs = zip(("the policy's scores", "the values that it learns by"), networks_of(self.model), strict=True)
        self._hooks = [network[-1].register_forward_hook(partial(self._inspect, what)) for what, network in outputs]
        self._begin()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps * self._agent.evaluations >= self._epoch * self._agent.steps:
            self._end()
            self._begin()

    def _on_step(self) -> bool:
        self._reward += float(self.locals["rewards"][0])
        self._bar.update(self._loss() or 0.0, self._agent.lr)
        return True

    def _on_rollout_end(self) -> None:
        if not self._seen:
            self._timeline.record(f"TRAIN_BATCH_{self.num_timesteps}", self._epoch)
            self._seen = True

    def _on_training_end(self) -> None:
        self._end()
        for hook in self._hooks:
            hook.remove()

    @property
    def _epoch(self) -> int:
        return len(self.evaluations) + 1

    def _begin(self) -> None:
        self._timeline.record("EPOCH_START", self._epoch)
        self._reward, self._begun, self._seen = 0.0, self.num_timesteps, False
        self._bar.start_epoch(self._epoch, 0)

    def _end(self) -> None:
        epoch, record = self._epoch, self._timeline.record
        for phase in ("AFTER_TRAINING", "BEFORE_VALIDATION", "VALIDATION_START"):
            record(phase, epoch)
        earnings = measure_earnings(scores_of(self._policy), self._validation, self._rewards)
        record("VALIDATION_END", epoch)
        found = Evaluation(
            epoch=epoch,
            steps=self.num_timesteps,
            updates=int(self.model._n_updates),
            train_reward=self._reward / (self.num_timesteps - self._begun) * self._unit,
            loss=self._loss(),
            val=earnings,
        )
        record("AFTER_VALIDATION", epoch)
        save_checkpoint(self._folder / "checkpoints" / CHECKPOINT, {"model": self._policy.state_dict(), "steps": found.steps})
        record("AFTER_CHECKPOINT", epoch)
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        self._report(found)
        record("EPOCH_END", epoch)
        self.evaluations.append(found)

    def _loss(self) -> float | None:
        loss = self.logger.name_to_value.get("train/loss")
        if loss is None:
            return None
        if not math.isfinite(loss):
            raise self._diverged(f"the loss of the last update is {loss}")
        return float(loss)

    def _inspect(self, what: str, layer: nn.Module, inputs: object, output: Tensor) -> None:
        """Check every forward pass, before the learner computes positions, a distribution or a loss from it."""
        if not output.isfinite().all():
            raise self._diverged(f"{what} are not finite")

    def _diverged(self, what: str) -> NonFiniteError:
        weights = not_finite_weights(self.model.policy)
        cause = f"the weights {', '.join(weights[:5])} are not finite" if weights else "all weights are finite, their products overflow"
        return NonFiniteError(f"step {self.num_timesteps}: {what}; {cause}; lower agent.lr {self._agent.lr}")


def _scaling(data: Datasets) -> ColumnScaling:
    """Return the scaling of the history input's columns."""
    return data.scaling.history.at(data.train.inputs.history_places)
