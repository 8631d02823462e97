"""Rewards: a position's return over the next bar, net of the cost of changing it, and a policy's earnings over many bars."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tftq.data.windows import LogReturn, Windows
from tftq.model.batch import gather

POSITIONS = (-1, 0, 1)  # short, flat, long; of the actions in their order
FLAT = POSITIONS.index(0)
CHUNK = 64  # windows whose scores are computed at a time
EVALUATED = CHUNK * len(POSITIONS)  # rows of a network's input then: each window with every position held

Scores = Callable[[Tensor, Tensor], Tensor]
"""From raw history [batch, lookback, columns] and the position held [batch, 1] to a score of each of `POSITIONS` [batch, 3]."""


class Rewards:
    """The reward of every window: `position · ln(close[t+1] / close[t]) - |position - held| · cost_ticks · tick / close[t]`.

    Args:
        windows: of bars; t is the last bar of a window's history.
        cost_ticks: the cost of changing a unit of position, in ticks.
        tick: the least step of the price.

    Attributes:
        log_returns: of the bar after each window, float64 [windows].
        costs: of a unit of position changed at each window, as a log return, float64 [windows].
        closing_costs: of a unit of position given up at the last close of each run, as a log return, float64 [runs].
        runs: the first window of each run of windows a bar apart, and the first one past it.
    """

    def __init__(self, windows: Windows, cost_ticks: float, tick: float) -> None:
        assert isinstance(windows.target, LogReturn)
        close = torch.from_numpy(windows.target.close)
        last = torch.from_numpy(windows.last_rows(np.arange(len(windows))))
        self.log_returns = torch.log(close[last + 1] / close[last])
        self.costs = cost_ticks * tick / close[last]
        borders = [0, *(1 + np.flatnonzero(np.diff(windows.starts) != 1)).tolist(), len(windows)]
        self.runs = list(pairwise(borders))
        self.closing_costs = cost_ticks * tick / close[last[torch.tensor(borders[1:]) - 1] + 1]

    def of(self, window: int, position: int, held: int) -> float:
        """Return the reward of a position taken at the end of a window, from the one held before."""
        return position * float(self.log_returns[window]) - abs(position - held) * float(self.costs[window])

    def earnings(self, positions: Tensor) -> "Earnings":
        """Add up the earnings of a sequence of positions; nothing is held from one run to the next.

        Positions and costs are as in the ledger of `tftq.ensemble.backtest`, where a bar earns a share of the notional: here a log return.

        Args:
            positions: int64 [windows], one of `POSITIONS` each; each run begins with none, and its last close ends it.
        """
        starts, stops = (torch.tensor(borders) for borders in zip(*self.runs, strict=True))
        held = positions.roll(1)
        held[starts] = 0
        changed, closed = (positions - held).abs(), positions[stops - 1].abs()
        gross = float((positions * self.log_returns).sum())
        cost = float((changed * self.costs).sum() + (closed * self.closing_costs).sum())
        shares = [float((positions == position).double().mean()) for position in POSITIONS]
        return Earnings(len(positions), gross - cost, cost, int(changed.sum() + closed.sum()), *shares)

    def hold(self, position: int) -> "Earnings":
        """Add up the earnings of one position taken at the start of each run and held to its last close."""
        return self.earnings(torch.full((len(self.log_returns),), position))


@dataclass(frozen=True)
class Earnings:
    """The earnings of a sequence of positions.

    Attributes:
        bars: how many.
        net_return: sum of the rewards less the cost of closing at the end of each run, a log return.
        cost: the part of the gross return paid for changes, including those at the ends.
        turnover: units of position changed, at the ends too.
        short, flat, long: share of the bars.
    """

    bars: int
    net_return: float
    cost: float
    turnover: int
    short: float
    flat: float
    long: float


def score_windows(scores: Scores, windows: Windows) -> Tensor:
    """Score every window with every position held, [windows, 3 held, 3 to take]."""
    parts = [scores(*cross_positions(windows, indices)) for indices in torch.arange(len(windows)).split(CHUNK)]
    return torch.cat(parts).unflatten(0, (-1, len(POSITIONS)))


def best_actions(scores: Scores, windows: Windows) -> Tensor:
    """Find the action with the highest score for every window and position held, the first where some tie; int64 [windows, 3]."""
    return score_windows(scores, windows).argmax(2)


def cross_positions(windows: Windows, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the history of windows for every position held: [windows · 3, lookback, columns] and [windows · 3, 1]."""
    history = gather(windows, indices).history.repeat_interleave(len(POSITIONS), 0)
    return history, torch.tensor(POSITIONS, dtype=torch.float32).repeat(len(indices))[:, None]


def follow_actions(chosen: Tensor, rewards: Rewards) -> Tensor:
    """Follow the best actions through each run, which begins without a position.

    Args:
        chosen: of `best_actions` [windows, 3].
        rewards: of the same windows.

    Returns:
        int64 [windows], of `POSITIONS`.
    """
    actions, table = [], chosen.tolist()
    for start, stop in rewards.runs:
        action = FLAT
        for window in range(start, stop):
            action = table[window][action]
            actions.append(action)
    return torch.tensor(POSITIONS)[torch.tensor(actions)]


def measure_earnings(scores: Scores, windows: Windows, rewards: Rewards) -> Earnings:
    """Measure a policy's earnings on windows where it always takes the position with the highest score.

    Args:
        scores: of the policy.
        windows: to trade.
        rewards: of the same windows.
    """
    return rewards.earnings(follow_actions(best_actions(scores, windows), rewards))
