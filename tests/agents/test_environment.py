"""The environment: gymnasium's own check, a hand-worked ledger, the borders of runs, and nothing of the future."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from tests.agents.small import LOOKBACK, two_runs, waves, windows_of
from tests.agents.test_rewards import CLOSE, NEXT
from tftq.agents.environment import TradingEnvironment
from tftq.agents.rewards import POSITIONS, Rewards
from tftq.data.windows import Windows


def environment(windows: Windows | None = None, cost_ticks: float = 2.0) -> TradingEnvironment:
    windows = windows or two_runs()
    return TradingEnvironment(windows, Rewards(windows, cost_ticks, tick=0.25))


def test_gymnasium_finds_nothing_to_warn_of() -> None:
    made = environment()
    made.spec = EnvSpec("Trading-v0", entry_point=environment)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made)
        gymnasium.utils.passive_env_checker.check_observation_space(made.observation_space)


def test_an_episode_earns_what_the_ledger_says() -> None:
    made = environment()
    made.reset(options={"run": 1})
    actions = [2, 0, 0, 1]  # long, short, short, flat
    rewards, ends = [], []
    for action in actions:
        observation, reward, terminated, truncated, _ = made.step(np.int64(action))
        rewards.append(reward)
        ends.append((terminated, truncated))
        assert observation["position"].tolist() == [POSITIONS[action]]
    costs = [units * 0.5 / close for units, close in zip((1, 2, 0, 1), CLOSE[4:], strict=True)]
    returns = [np.log(NEXT[4]), -np.log(NEXT[5]), -np.log(NEXT[6]), 0.0]
    assert rewards == pytest.approx([gained - cost for gained, cost in zip(returns, costs, strict=True)])
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_windows_follow_bar_after_bar_and_never_leave_their_run() -> None:
    windows = two_runs()
    made = environment(windows)
    for run, first in enumerate((0, 8)):
        observation, info = made.reset(options={"run": run})
        assert observation["position"].tolist() == [0]
        truncated, last = False, first + LOOKBACK - 1
        while True:
            assert info["row"] == last
            assert np.array_equal(observation["history"], windows.rows[last + 1 - LOOKBACK : last + 1])
            if truncated:
                break
            observation, _, _, truncated, info = made.step(np.int64(1))
            last += 1
        assert last == first + 7  # the last bar of the run, whose return was earned


def test_an_observation_and_what_was_earned_before_know_nothing_of_the_future() -> None:
    data = waves()
    whole, border = data.train, 40  # bars up to here stay
    order = np.r_[:border, border + np.random.default_rng(2).permutation(len(whole.rows) - border)]
    shuffled = windows_of(whole.target.close[order], whole.rows[order], [len(whole.rows)])
    courses = []
    for windows in (whole, shuffled):
        made = environment(windows)
        observation, _ = made.reset(options={"run": 0})
        course = [observation["history"]]
        for step in range(border - LOOKBACK):  # up to the close of bar border - 1
            observation, reward, *_ = made.step(np.int64(step % 3))
            course += [np.float64(reward), observation["history"], observation["position"]]
        courses.append(course)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*courses, strict=True))
    assert not np.array_equal(whole.rows[border:], shuffled.rows[border:])


def test_runs_are_drawn_by_their_length_and_by_the_seed() -> None:
    close, rows = np.full(30, 100.0), np.zeros((30, 3), np.float32)
    made = environment(windows_of(close, rows, [24, 6]))
    firsts = [made.reset(seed=3 if number == 0 else None)[1]["row"] for number in range(300)]
    again = [made.reset(seed=3 if number == 0 else None)[1]["row"] for number in range(300)]
    assert firsts == again
    assert set(firsts) == {3, 27}
    assert 0.85 < firsts.count(3) / 300 < 0.97  # 20 of 22 windows are in the first run
