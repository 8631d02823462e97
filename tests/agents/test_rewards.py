"""What positions earn, against a ledger worked out by hand."""

from math import log

import numpy as np
import pytest
import torch

from tests.agents.small import two_runs, waves
from tftq.agents.rewards import POSITIONS, Earnings, Rewards, best_actions, follow_actions, measure_earnings
from tftq.data.windows import LogReturn, Windows
from tftq.ensemble.backtest import Bars, ledger
from tftq.spec.inputs import Column, Inputs

# Windows of the first run end at the closes 100, 102, 101, 103; of the second at 102, 100, 99, 101.
NEXT = (102 / 100, 101 / 102, 103 / 101, 104 / 103, 100 / 102, 99 / 100, 101 / 99, 100 / 101)
CLOSE = (100, 102, 101, 103, 102, 100, 99, 101)


def test_returns_costs_and_runs_of_windows() -> None:
    rewards = Rewards(two_runs(), cost_ticks=2, tick=0.25)
    assert rewards.runs == [(0, 4), (4, 8)]
    assert rewards.log_returns.tolist() == pytest.approx([log(ratio) for ratio in NEXT])
    assert rewards.costs.tolist() == pytest.approx([0.5 / close for close in CLOSE])


def test_a_course_of_positions_is_worth_what_the_ledger_says() -> None:
    rewards = Rewards(two_runs(), cost_ticks=2, tick=0.25)
    positions = torch.tensor([1, -1, 0, 1, 1, -1, -1, 0])
    changed = [1, 2, 1, 1, 1, 2, 0, 1]  # a flip costs two, and each run begins flat
    closing = 0.5 / 104  # the first run ends long, the second flat
    gross = log(NEXT[0]) - log(NEXT[1]) + log(NEXT[3]) + log(NEXT[4]) - log(NEXT[5]) - log(NEXT[6])
    cost = sum(units * 0.5 / close for units, close in zip(changed, CLOSE, strict=True)) + closing
    found = rewards.earnings(positions)
    assert (found.bars, found.turnover, found.short, found.flat, found.long) == (8, 10, 3 / 8, 2 / 8, 3 / 8)
    assert found.cost == pytest.approx(cost)
    assert found.net_return == pytest.approx(gross - cost)
    held = [0, *positions.tolist()[:3], 0, *positions.tolist()[4:7]]
    single = [rewards.of(window, int(position), before) for window, (position, before) in enumerate(zip(positions, held, strict=True))]
    assert sum(single) - closing == pytest.approx(found.net_return)


def test_positions_and_costs_are_those_of_the_backtest_and_returns_are_log_returns() -> None:
    """Five bars, 100, 102 and 101, and after a gap 200 and 198: long, short, out; short, out. A unit costs 0.5."""
    close, last = [100.0, 102.0, 101.0, 200.0, 198.0], [0, 1, 3]  # bars of which another of the segment follows
    changed, cost = 1 + 2 + 1 + 1 + 1, 0.5 / 100 + 2 * 0.5 / 102 + 0.5 / 101 + 0.5 / 200 + 0.5 / 198
    log_returns = log(102 / 100) - log(101 / 102) - log(198 / 200)
    shares = 2 / 100 + 1 / 102 + 2 / 200  # of the notional

    inputs = Inputs((Column("price", "observed"),), lookback=1, horizon=1)
    target = LogReturn(np.array(close, np.float64))
    windows = Windows("five bars", inputs, np.zeros((5, 1), np.float32), np.arange(5), np.array(last), target)
    ours = Rewards(windows, cost_ticks=2, tick=0.25).earnings(torch.tensor([1, -1, -1]))
    assert (ours.turnover, ours.cost) == (changed, pytest.approx(cost))
    assert ours.net_return == pytest.approx(log_returns - cost)

    answered = np.array([1.0, -1.0, 1.0, -1.0, -1.0])  # at a segment's last bar too, where nothing is taken
    theirs = ledger(Bars(np.arange(5), np.array([0, 0, 0, 1, 1]), np.array(close)), answered, cost=0.5)
    assert (theirs.changed.sum(), theirs.costs.sum()) == (changed, pytest.approx(cost))
    assert theirs.equity[-1] == pytest.approx(shares - cost)


def test_buying_and_holding_pays_twice_a_run_and_doing_nothing_never() -> None:
    rewards = Rewards(two_runs(), cost_ticks=2, tick=0.25)
    long, flat = rewards.hold(1), rewards.hold(0)
    assert long.net_return == pytest.approx(log(104 / 100) + log(100 / 102) - 0.5 / 100 - 0.5 / 104 - 0.5 / 102 - 0.5 / 100)
    assert (long.turnover, long.long) == (4, 1.0)
    assert flat == Earnings(8, 0.0, 0.0, 0, 0.0, 1.0, 0.0)


def test_a_policy_holds_what_it_chose_and_begins_each_run_flat() -> None:
    def stubborn(history: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Keeps what it holds; flat, it goes short; the first of those that tie."""
        scores = (torch.tensor(POSITIONS) == position).float()
        return torch.where(position == 0, torch.zeros(3), scores)

    windows = two_runs()
    chosen = best_actions(stubborn, windows)
    assert chosen.tolist() == [[0, 0, 2]] * 8  # held short, flat, long
    rewards = Rewards(windows, cost_ticks=0, tick=0.25)
    assert follow_actions(chosen, rewards).tolist() == [-1] * 8
    assert measure_earnings(stubborn, windows, rewards) == rewards.hold(-1)


def test_choices_do_not_depend_on_how_windows_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = waves().train
    scores = lambda history, position: torch.cat([history[:, -1, :2], position], dim=1)  # noqa: E731
    whole = best_actions(scores, windows)
    monkeypatch.setattr("tftq.agents.rewards.CHUNK", 7)
    assert torch.equal(best_actions(scores, windows), whole)
