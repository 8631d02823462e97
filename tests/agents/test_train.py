"""Training by Stable-Baselines3: it learns what there is to learn, repeats itself, and keeps to what it says of itself."""

import io
import json
import random
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3
import torch

from tests.agents.small import LOOKBACK, waves
from tftq.agents.plan import TRANSITION_BYTES, buffer_bytes, plan_training, trained_parameters
from tftq.agents.policy import Policy, scores_of
from tftq.agents.recipe import DqnRecipe, PpoRecipe
from tftq.agents.replay import TRANSITION, WindowReplayBuffer
from tftq.agents.rewards import POSITIONS, Rewards, cross_positions
from tftq.agents.train import Evaluation, build_learner, policy_of, train_agent
from tftq.errors import NonFiniteError
from tftq.memory.timeline import MemoryRecorder
from tftq.train.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
DATA = waves()
COSTS = {"cost_ticks": 0.5, "tick": 0.01}
DQN = DqnRecipe(kind="dqn", layers=(16,), steps=900, evaluations=3, batch_size=16, learning_starts=50, lr=1e-2, gamma=0.5, **COSTS)
PPO = PpoRecipe(kind="ppo", layers=(16,), steps=900, evaluations=3, batch_size=20, n_steps=100, lr=1e-2, gamma=0.5, **COSTS)
BOTH = pytest.mark.parametrize("agent", [DQN, PPO], ids=["dqn", "ppo"])


def trained(
    agent: DqnRecipe | PpoRecipe, folder: Path, *, seed: int = 7
) -> tuple[Policy, list[Evaluation], MemoryRecorder, list[Evaluation]]:
    folder.mkdir()
    watch = MemoryRecorder(folder / "memory.jsonl", CPU)
    told: list[Evaluation] = []
    policy, evaluations = train_agent(agent, DATA, folder, watch, seed=seed, device=CPU, report=told.append)
    return policy, evaluations, watch, told


@pytest.fixture(scope="module", params=[DQN, PPO], ids=["dqn", "ppo"])
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("agent") / "run"
    with redirect_stdout(io.StringIO()) as printed:
        found = trained(request.param, folder)
    assert printed.getvalue() == ""  # of the learner's own chatter
    return request.param, folder, *found


def test_it_learns_a_price_that_tells_where_it_goes(once) -> None:  # type: ignore[no-untyped-def]
    agent, _, _, evaluations, _, _ = once
    rewards = Rewards(DATA.validation, agent.cost_ticks, agent.tick)
    foresight = rewards.earnings(rewards.log_returns.sign().long())
    assert foresight.net_return > 0
    assert evaluations[-1].val.net_return > 0.6 * foresight.net_return
    assert evaluations[-1].val.net_return > rewards.hold(1).net_return


def test_what_it_leaves(once) -> None:  # type: ignore[no-untyped-def]
    _, folder, policy, evaluations, watch, told = once
    assert told == evaluations
    assert [found.epoch for found in evaluations] == [1, 2, 3]
    assert [found.steps for found in evaluations] == [300, 600, 900]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["val"]["net_return"] for line in lines] == [found.val.net_return for found in evaluations]
    assert all(np.isfinite(line["loss"]) and line["updates"] > 0 for line in lines)
    content = load_checkpoint(folder / "checkpoints" / "last.pt")  # reads tensors and plain types alone
    assert content["steps"] == 900
    assert content["model"].keys() == policy.state_dict().keys()
    assert all(torch.equal(tensor, content["model"][name]) for name, tensor in policy.state_dict().items())
    assert str(watch.timeline) == "27 of 27"
    assert not any(module._forward_hooks for module in policy.modules())  # what watched the training is gone


def test_memory_is_that_of_the_trained_networks_and_as_planned(once) -> None:  # type: ignore[no-untyped-def]
    agent, folder, *_ = once
    records = [json.loads(line) for line in (folder / "memory.jsonl").read_text().splitlines()]
    assert {record["source"] for record in records} == {"counter"}
    count = trained_parameters(agent, DATA.train.inputs)
    assert records[-1]["components"]["optimizer"] == pytest.approx(2 * 4 * count, abs=64)  # and a step count for each tensor
    update, validation = plan_training(agent, DATA.train.inputs, DATA.scaling.history, CPU)
    peak = max(record["peak"] for record in records if record["phase"] == "AFTER_TRAINING")
    assert peak == pytest.approx(update.peak_bytes, rel=0.25)
    assert max(record["peak"] for record in records) <= 1.1 * max(update.peak_bytes, validation.peak_bytes)


@BOTH
def test_two_trainings_of_a_seed_are_equal(agent: DqnRecipe | PpoRecipe, tmp_path: Path) -> None:
    short = agent.model_copy(update={"steps": 100, "evaluations": 1})
    first, *_ = trained(short, tmp_path / "first")
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    second, *_ = trained(short, tmp_path / "second")
    other = policy_of(build_learner(short, DATA, seed=8, device=CPU), DATA)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(first.parameters(), other.parameters(), strict=True))


@BOTH
def test_the_policy_decides_as_the_learner_does(agent: DqnRecipe | PpoRecipe) -> None:
    learner = build_learner(agent, DATA, seed=7, device=CPU)
    policy = policy_of(learner, DATA)
    history, position = cross_positions(DATA.validation, torch.arange(len(DATA.validation)))
    actions, _ = learner.predict({"history": history.numpy(), "position": position.numpy()}, deterministic=True)
    assert torch.equal(scores_of(policy)(history, position).argmax(1), torch.from_numpy(actions))
    networks = [learner.policy.q_net] if agent.kind == "dqn" else [learner.policy]
    assert trained_parameters(agent, DATA.train.inputs) == sum(parameter.numel() for net in networks for parameter in net.parameters())


@BOTH
def test_a_training_that_diverges_says_at_which_step_and_what_to_do(agent: DqnRecipe | PpoRecipe, tmp_path: Path) -> None:
    with pytest.raises(
        NonFiniteError, match=r"^step \d+: the (policy's scores|values that it learns by) are not finite; .*; lower agent\.lr 1e\+30$"
    ):
        trained(agent.model_copy(update={"lr": 1e30}), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # it was found before the first evaluation


@BOTH
def test_a_loss_that_is_not_finite_is_no_evaluation(agent: DqnRecipe | PpoRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for learner in (stable_baselines3.DQN, stable_baselines3.PPO):
        monkeypatch.setattr(learner, "train", lambda self, *_, **__: self.logger.record("train/loss", np.inf))
    short = agent.model_copy(update={"steps": 100, "evaluations": 1})
    with pytest.raises(NonFiniteError, match=r"^step \d+: the loss of the last update is inf; .*; lower agent\.lr 0\.01$"):
        trained(short, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_rollout_is_held_once() -> None:
    """Of one environment, the order in which updates read it is that in which it was collected: a view."""
    buffer = build_learner(PPO, DATA, seed=7, device=CPU).rollout_buffer
    collected = dict(buffer.observations)
    buffer.full = True
    next(buffer.get(PPO.batch_size))
    assert all(np.shares_memory(before, buffer.observations[name]) for name, before in collected.items())
    assert buffer_bytes(PPO, DATA.train.inputs) == sum(seen.nbytes for seen in buffer.observations.values())


def test_the_replay_buffer_gives_back_what_was_seen() -> None:
    learner = build_learner(DQN.model_copy(update={"buffer_size": 200}), DATA, seed=7, device=CPU)
    buffer, environment = learner.replay_buffer, learner.get_env()
    assert isinstance(buffer, WindowReplayBuffer)
    assert TRANSITION.itemsize == TRANSITION_BYTES
    assert buffer_bytes(DQN.model_copy(update={"buffer_size": 200}), DATA.train.inputs) == buffer._transitions.nbytes
    seen, observation = [], environment.reset()
    for step in range(len(DATA.train) + 5):  # past the end of an episode, where the environment begins anew by itself
        action = np.array([step % 3])
        following, reward, done, infos = environment.step(action)
        last = {name: value[None] for name, value in infos[0]["terminal_observation"].items()} if done[0] else following
        buffer.add(observation, last, action, reward, done, infos)
        seen.append((observation, action, reward, last))
        observation = following
    sample = buffer._get_samples(np.arange(len(seen)))
    assert sample.observations["history"].shape == (len(seen), LOOKBACK, 3)
    for row, (before, action, reward, after) in enumerate(seen):
        assert np.array_equal(sample.observations["history"][row], before["history"][0])
        assert np.array_equal(sample.observations["position"][row], before["position"][0])
        assert np.array_equal(sample.next_observations["history"][row], after["history"][0])
        assert sample.next_observations["position"][row].item() == POSITIONS[action[0]] == after["position"].item()
        assert sample.actions[row].item() == action[0]
        assert sample.rewards[row].item() == pytest.approx(reward[0])
    assert not sample.dones.any()
    for _ in range(200 - len(seen)):
        buffer.add(observation, last, action, reward, done, infos)
    assert (buffer.full, buffer.pos) == (True, 0)
