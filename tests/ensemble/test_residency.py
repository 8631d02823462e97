"""Members within a budget: refused with the table, or loaded in turn, the least recently used making room."""

from collections.abc import Sequence

import numpy as np
import pytest

from tftq.ensemble.answers import Answer
from tftq.ensemble.interface import Interface
from tftq.ensemble.market import Market
from tftq.ensemble.member import Member
from tftq.ensemble.residency import Residency, plan_table
from tftq.errors import EnsembleError
from tftq.spec.units import MIB


class Counted(Member):
    """A member that is loaded by saying so."""

    def __init__(self, name: str, broken: bool = False, needs: int = 1) -> None:
        super().__init__(name, "counted", (), Interface(1, needs - 1, {}, "y", "position"), threads=1, shared=False)
        self.broken, self.there = broken, False

    @property
    def loaded(self) -> bool:
        return self.there

    def load(self) -> None:
        if self.broken:
            raise RuntimeError("no such opset")
        self.there = True

    def unload(self) -> None:
        self.there = False

    def answer(self, market: Market) -> Answer:
        return Answer(0.0)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: object) -> None:
        pass


def some(*names: str) -> list[Counted]:
    return [Counted(name) for name in names]


def ask(residency: Residency, members: Sequence[Member]) -> None:
    """One bar: every member is asked, in the order that the residency gives."""
    for member in residency.order():
        with residency.using(member):
            assert member.loaded


def test_over_budget_is_refused_with_the_table() -> None:
    planned = {"tft": 42 * MIB, "dqn": 6 * MIB}
    table = "  tft           42.0 MiB\n  dqn            6.0 MiB\n  together      48.0 MiB\n  budget        40.0 MiB"
    assert plan_table(planned, 40 * MIB) == table
    with pytest.raises(EnsembleError) as refused:
        Residency(some("tft", "dqn"), {"tft": 34 * MIB, "dqn": 7 * MIB}, 40 * MIB, lazy=False)
    assert "the members together are above memory.budget_mb" in str(refused.value)
    assert "tft           34.0 MiB" in str(refused.value) and "together      41.0 MiB" in str(refused.value)
    assert "memory.residency: lazy" in str(refused.value)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_single_member_over_budget_is_refused_in_either_mode(lazy: bool) -> None:
    with pytest.raises(EnsembleError, match=r"tft alone above memory\.budget_mb:\n  tft +42\.0 MiB"):
        Residency(some("tft", "dqn"), {"tft": 42 * MIB, "dqn": MIB}, 40 * MIB, lazy=lazy)


def test_all_are_loaded_where_all_fit() -> None:
    members = some("a", "b")
    residency = Residency(members, {"a": MIB, "b": MIB}, 2 * MIB, lazy=False)
    residency.load_all()
    assert all(member.loaded for member in members)
    ask(residency, members)
    assert residency.loads.loads == {"a": 1, "b": 1} and residency.loads.evictions == []
    assert set(residency.loads.grown) == {"a", "b"}


def test_at_the_end_all_are_unloaded() -> None:
    members = some("a", "b")
    residency = Residency(members, {"a": MIB, "b": MIB}, 2 * MIB, lazy=False)
    residency.load_all()
    residency.unload_all()
    assert not any(member.loaded for member in members) and residency.loads.evictions == []


def test_lazily_the_least_recently_used_makes_room() -> None:
    members = some("a", "b", "c")
    residency = Residency(members, {"a": 2 * MIB, "b": 2 * MIB, "c": 2 * MIB}, 4 * MIB, lazy=True)
    residency.load_all()
    assert not any(member.loaded for member in members)
    a, b, c = members
    for member in (a, b, a, c):  # b was used longer ago than a
        with residency.using(member):
            pass
    assert residency.loads.evictions == ["b"] and (a.loaded, b.loaded, c.loaded) == (True, False, True)
    with residency.using(b):
        pass
    assert residency.loads.evictions == ["b", "a"] and residency.loads.loads == {"a": 1, "b": 2, "c": 1}


def test_lazily_those_in_memory_are_asked_first() -> None:
    """Of three members of which two fit, each bar loads one: taken in turn, all three would be loaded at every bar."""
    members = some("a", "b", "c")
    residency = Residency(members, dict.fromkeys("abc", MIB), 2 * MIB, lazy=True)
    for _ in range(4):
        ask(residency, members)
    assert sum(residency.loads.loads.values()) == 3 + 3 * 1 and residency.loads.evictions == ["a", "b", "a", "b"]


def test_a_large_member_takes_the_place_of_several() -> None:
    members = some("a", "b", "large")
    residency = Residency(members, {"a": MIB, "b": MIB, "large": 3 * MIB}, 4 * MIB, lazy=True)
    for member in members:
        residency.load(member)
    assert residency.loads.evictions == ["a"] and residency.loads.summary()["evictions"] == 1
    residency.load(members[0])
    assert residency.loads.evictions == ["a", "b"]


def test_a_member_that_cannot_be_loaded_is_named() -> None:
    residency = Residency([Counted("bad", broken=True)], {"bad": MIB}, MIB, lazy=False)
    with pytest.raises(EnsembleError, match="member bad: cannot be loaded: no such opset"):
        residency.load_all()


def test_a_member_that_is_dropped_makes_room_for_good() -> None:
    a, b = members = some("a", "b")
    residency = Residency(members, {"a": MIB, "b": MIB}, MIB, lazy=True)
    residency.load(a)
    residency.drop(a)
    residency.load(b)
    assert residency.order() == [b] and not a.loaded and residency.loads.evictions == []


def test_what_loading_and_unloading_free_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the process would stay as large as if all members that ever were in it still were."""
    a, b = members = some("a", "b")
    there: list[tuple[bool, bool]] = []
    monkeypatch.setattr("tftq.ensemble.residency.trim_heap", lambda: there.append((a.loaded, b.loaded)))
    residency = Residency(members, {"a": MIB, "b": MIB}, MIB, lazy=True)
    residency.load(a)
    residency.load(b)
    residency.drop(b)
    assert there == [(True, False), (False, False), (False, True), (False, False)]


def test_what_a_first_answer_takes_counts_though_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([0, 5, 5, 45])  # before and after loading, before and after the answer
    monkeypatch.setattr("tftq.ensemble.residency.resident_bytes", lambda: next(sizes))
    (a,) = members = some("a")
    residency = Residency(members, {"a": MIB}, MIB, lazy=False)
    residency.load_all()
    with pytest.raises(RuntimeError), residency.using(a):
        raise RuntimeError
    assert residency.loads.grown == {"a": 45} and not residency.alone(a)
