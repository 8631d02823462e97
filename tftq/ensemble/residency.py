"""Keep members in memory within a budget: all of them, or as many as fit, where the least recently used is unloaded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tftq.ensemble.member import Member
from tftq.errors import EnsembleError
from tftq.serve.resident import resident_bytes, trim_heap
from tftq.spec.units import MIB


def plan_table(planned: Mapping[str, int], budget_bytes: int) -> str:
    """Format the plan of every member, their sum and the budget, one line each."""
    rows = [*planned.items(), ("together", sum(planned.values())), ("budget", budget_bytes)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:{width}}  {size / MIB:8.1f} MiB" for name, size in rows)


@dataclass
class Loads:
    """How often members were loaded, and the cost.

    Attributes:
        loads: member -> how often it was loaded.
        evictions: members in the order in which they were unloaded to make room.
        seconds: spent on loading.
        grown: member -> growth of the process, in bytes, when it was last loaded and first run after that.
    """

    loads: dict[str, int] = field(default_factory=dict)
    evictions: list[str] = field(default_factory=list)
    seconds: float = 0.0
    grown: dict[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return plain types, for summary.json."""
        return {"loads": self.loads, "evictions": len(self.evictions), "load_seconds": self.seconds}


class Residency:
    """Loads members and keeps the sum of their plans within a budget.

    Args:
        members: in any order.
        planned: member -> resident bytes.
        budget_bytes: the limit for all together.
        lazy: load a member when it is run, and unload the least recently used to make room; else all must fit at once.

    Raises:
        EnsembleError: they do not fit, with the table; or, where lazy, a single one does not.
    """

    def __init__(self, members: Sequence[Member], planned: Mapping[str, int], budget_bytes: int, *, lazy: bool) -> None:
        table = plan_table(planned, budget_bytes)
        if large := [name for name, size in planned.items() if size > budget_bytes]:
            raise EnsembleError(f"{', '.join(large)} alone above memory.budget_mb:\n{table}\nraise it, or take a smaller format")
        if not lazy and sum(planned.values()) > budget_bytes:
            advice = "raise it, leave members out, take smaller formats, or set memory.residency: lazy, which loads them in turn"
            raise EnsembleError(f"the members together are above memory.budget_mb:\n{table}\n{advice}")
        self._members, self._planned, self._budget, self._lazy = list(members), planned, budget_bytes, lazy
        self._resident: OrderedDict[str, Member] = OrderedDict()  # the least recently used first
        self._new: set[str] = set()  # loaded and not run yet
        self.loads = Loads()

    def load_all(self) -> None:
        """Load every member, where all must fit.

        Raises:
            EnsembleError: one cannot be loaded.
        """
        if self._lazy:
            return
        for member in self._members:
            try:
                self.load(member)
            except EnsembleError:
                raise
            except Exception as error:  # the runtime's errors have no other base
                raise EnsembleError(f"member {member.name}: cannot be loaded: {error}") from error

    def alone(self, member: Member) -> bool:
        """Check whether a member must run alone: it is loaded then, or its first answer is measured."""
        return self._lazy or member.name in self._new

    def order(self) -> list[Member]:
        """Order the members, those in memory first, so that none is unloaded before its turn."""
        return sorted(self._members, key=lambda member: not member.loaded)

    def load(self, member: Member) -> None:
        """Load a member where it is not in memory, and mark it as the most recently used.

        Raises:
            Exception: any error of loading it.
        """
        if not member.loaded:
            member.require_same_files()
            while self._held() + self._planned[member.name] > self._budget:
                name, evicted = self._resident.popitem(last=False)
                evicted.unload()
                trim_heap()
                self.loads.evictions.append(name)
            before, start = resident_bytes(), time.perf_counter()
            member.load()
            trim_heap()  # loading needs memory only temporarily
            self.loads.seconds += time.perf_counter() - start
            self.loads.loads[member.name] = self.loads.loads.get(member.name, 0) + 1
            self.loads.grown[member.name] = resident_bytes() - before
            self._resident[member.name] = member
            self._new.add(member.name)
        self._resident.move_to_end(member.name)

    @contextmanager
    def using(self, member: Member) -> Iterator[None]:
        """Load a member, and measure the growth of the process by its first answer.

        Raises:
            Exception: whatever loading it raises.
        """
        self.load(member)
        if member.name not in self._new:
            yield
            return
        self._new.remove(member.name)
        before = resident_bytes()
        try:
            yield
        finally:
            self.loads.grown[member.name] += resident_bytes() - before

    def drop(self, member: Member) -> None:
        """Unload a member that is not run any more."""
        if self._resident.pop(member.name, None) is not None:
            member.unload()
            trim_heap()
        self._new.discard(member.name)
        self._members.remove(member)

    def unload_all(self) -> None:
        """Unload every member, at the end of a run."""
        for member in self._resident.values():
            member.unload()
        self._resident.clear()
        trim_heap()

    def _held(self) -> int:
        return sum(self._planned[name] for name in self._resident)
