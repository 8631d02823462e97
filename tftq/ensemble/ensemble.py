"""Run the members on every bar, several at once, and combine their answers; a member that fails does not stop the others."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tftq.data.files import iso
from tftq.ensemble.answers import Answer
from tftq.ensemble.market import Market
from tftq.ensemble.member import Member
from tftq.ensemble.recipe import OWN
from tftq.ensemble.residency import Residency
from tftq.ensemble.rules import RULES
from tftq.errors import NonFiniteError

OK, WARMING_UP, FAILED, NOT_FINITE, LEFT_OUT, NO_ANSWER = "ok", "warming up", "failed", "not finite", "left out", "no answer"
GIVEN_UP_AFTER = 10  # consecutive bars without an answer, though it was run
TIMED = 10_000  # bars whose times are kept


class Reply(NamedTuple):
    """The reply of a member or of the ensemble at a bar: an answer, or the reason why there is none."""

    member: str
    state: str
    answer: Answer | None = None


@dataclass(frozen=True)
class BarAnswers:
    """The replies at a bar: of the members in the recipe's order, then of the ensemble.

    Args:
        time: of the bar, in nanoseconds UTC.
        segment: the index of its segment, from 0.
        close: its price.
        replies: one of each.
    """

    time: int
    segment: int
    close: float
    replies: tuple[Reply, ...]


class Latency:
    """Times of the newest bars."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=TIMED)

    def add(self, seconds: float) -> None:
        """Add the time of a bar."""
        self._seconds.append(seconds)

    def summary(self) -> dict[str, float | int]:
        """Return median and 99th percentile in milliseconds, and the number of bars; zeros where there was none."""
        if not self._seconds:
            return {"median": 0.0, "p99": 0.0, "bars": 0}
        median, p99 = np.percentile(1e3 * np.array(self._seconds), [50, 99])
        return {"median": float(median), "p99": float(p99), "bars": len(self._seconds)}


class _Attempt(NamedTuple):
    """A member's answer, or the exception that it raised, and the seconds that it took."""

    found: Answer | Exception
    seconds: float


class Ensemble:
    """The members and the rule.

    Args:
        members: in the recipe's order.
        weights: of the members.
        rule: a name of `RULES`.
        minimum: members whose answers the rule must be able to use at a bar.
        residency: loads them into memory.
        at_once: members that run at a time, where all are in memory.
        report: called with a message about a member that fails; once for each member and type of failure.

    Attributes:
        states: member -> state -> bars.
        bars: answered so far.
    """

    def __init__(
        self,
        members: Sequence[Member],
        weights: Mapping[str, float],
        rule: str,
        minimum: int,
        residency: Residency,
        at_once: int,
        report: Callable[[str], None],
    ) -> None:
        self.members = list(members)
        self._weights, self._rule, self._minimum, self._residency, self._report = weights, RULES[rule], minimum, residency, report
        self._pool = ThreadPoolExecutor(at_once)
        self._in_a_row = dict.fromkeys(weights, 0)
        self.states: dict[str, Counter[str]] = {name: Counter() for name in (*weights, OWN)}
        self.latency = {name: Latency() for name in (*weights, OWN)}
        self.unusable: dict[str, str] = {}  # member -> why the rule cannot use its answers
        self.bars = 0

    def answer(self, market: Market) -> BarAnswers:
        """Run all members on the newest bar and combine their answers.

        Args:
            market: at the bar.

        Returns:
            Every member's reply, and the ensemble's.
        """
        outcomes = self._outcomes(market)
        said = {member.name: self._reply(member, outcomes[member.name], market) for member in self.members if member.name in outcomes}
        answers = {name: one.answer for name, one in said.items() if one.answer is not None}
        combined = self._rule(answers, self._weights, self._minimum)
        for name, why in combined.left_out.items():
            if name not in self.unusable:
                self.unusable[name] = why
                self._report(f"{name}: {why}, so that the rule has no use for its answers")
        state = WARMING_UP if said and all(one.state == WARMING_UP for one in said.values()) else NO_ANSWER
        own = Reply(OWN, state) if combined.answer is None else Reply(OWN, OK, combined.answer)
        every = (*(said.get(member.name, Reply(member.name, LEFT_OUT)) for member in self.members), own)
        for name, one_state, _ in every:
            self.states[name][one_state] += 1
        self.bars += 1
        return BarAnswers(market.time, market.segment, market.close, every)

    def _outcomes(self, market: Market) -> dict[str, _Attempt | None]:
        """Run the members, several at once except those that must run alone; None for one that is warming up."""

        def ask(member: Member) -> _Attempt | None:
            return self._ask(member, market) if member.ready(market) else None

        members = self._residency.order()
        alone = [member for member in members if self._residency.alone(member)]
        others = [member for member in members if member not in alone]
        found = {member.name: outcome for member, outcome in zip(others, self._pool.map(ask, others), strict=True)}
        return found | {member.name: ask(member) for member in alone}

    def _ask(self, member: Member, market: Market) -> _Attempt:
        """Run a member; touches nothing else, because others run at the same time."""
        begun = time.perf_counter()
        found: Answer | Exception
        try:
            with self._residency.using(member):
                found = member.answer(market)
        except Exception as error:  # a member must not stop the others, whatever its model raises; it is named and counted
            found = error
        return _Attempt(found, time.perf_counter() - begun)

    def _reply(self, member: Member, outcome: _Attempt | None, market: Market) -> Reply:
        """Count a member's attempt, and report it where it failed."""
        if outcome is None:
            return Reply(member.name, WARMING_UP)
        if isinstance(outcome.found, Exception):
            return self._failed(member, market, outcome.found)
        self._in_a_row[member.name] = 0
        self.latency[member.name].add(outcome.seconds)
        return Reply(member.name, OK, outcome.found)

    def _failed(self, member: Member, market: Market, error: Exception) -> Reply:
        state = NOT_FINITE if isinstance(error, NonFiniteError) else FAILED
        self._in_a_row[member.name] += 1
        if not self.states[member.name][state]:
            self._report(f"{member.name}: {state} at {iso(market.time)}, left out there: {type(error).__name__}: {error}")
        if self._in_a_row[member.name] == GIVEN_UP_AFTER:
            self._residency.drop(member)
            bars = f"{GIVEN_UP_AFTER} bars in a row without an answer, up to {iso(market.time)}"
            self._report(f"{member.name}: {bars}; not asked any more, but again after a restart")
        return Reply(member.name, state)

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown()

    def state(self) -> dict[str, Any]:
        """Return the state for a restart, without the members' own states, as plain types."""
        counts = {name: dict(counter) for name, counter in self.states.items()}
        return {"bars": self.bars, "states": counts, "in_a_row": self._in_a_row, "unusable": self.unusable}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state` of the same members."""
        self.bars = state["bars"]
        self.states = {name: Counter(counts) for name, counts in state["states"].items()}
        self.unusable = dict(state["unusable"])
        # A member that was given up is run again: its problem, such as memory or a file, may be solved.
        self._in_a_row = {name: 0 if count >= GIVEN_UP_AFTER else count for name, count in state["in_a_row"].items()}
