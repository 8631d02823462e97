"""Members asked at every bar: one that fails is named once, counted, and left out; the others go on."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import MINUTE, bar_columns
from tests.ensemble.models import LEVELS, MIB, agent, forecaster
from tests.ensemble.test_residency import Counted
from tftq.data.features.online import VALUES
from tftq.ensemble.answer_log import as_document
from tftq.ensemble.answers import Answer
from tftq.ensemble.ensemble import GIVEN_UP_AFTER, BarAnswers, Ensemble
from tftq.ensemble.market import Bar, Market
from tftq.ensemble.member import open_member
from tftq.ensemble.recipe import MemberRecipe
from tftq.ensemble.residency import Residency

COLUMNS = bar_columns(60)
BARS = [
    Bar(int(time), "ES", np.array(values, np.float64))
    for time, *values in zip(COLUMNS["ts_event"], *(COLUMNS[name] for name in VALUES), strict=True)
]
ROSE = [bool(close > begin) for begin, close in zip(COLUMNS["open"], COLUMNS["close"], strict=True)]
Asked = Callable[..., tuple[list[BarAnswers], Ensemble, list[str]]]


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """Ask members at bars, and hand over what was said, the ensemble, and what was told."""

    def ask(members: dict[str, Any], bars: list[Bar], **options: Any) -> tuple[list[BarAnswers], Ensemble, list[str]]:
        opened = [open_member(name, MemberRecipe(path=path), threads=1, shared=False) for name, path in members.items()]
        residency = Residency(opened, dict.fromkeys(members, MIB), len(members) * MIB, lazy=False)
        residency.load_all()
        told: list[str] = []
        given = {"weights": dict.fromkeys(members, 1.0), "rule": "median", "minimum": 1, "at_once": 1, **options}
        ensemble = Ensemble(opened, residency=residency, report=told.append, **given)
        market, answers = Market(MINUTE, None, 20), []
        for bar in bars:
            market.push(bar)
            answers.append(ensemble.answer(market))
        ensemble.close()
        return answers, ensemble, told

    return ask


def states(answers: list[BarAnswers], name: str) -> list[str]:
    return [next(one.state for one in at.replies if one.member == name) for at in answers]


@pytest.mark.parametrize(("fault", "state"), [("nan", "not finite"), ("raise", "failed")])
def test_a_member_that_fails_is_named_once_and_counted(tmp_path: Path, asked: Asked, fault: Any, state: str) -> None:
    members = {"bad": forecaster(tmp_path / "bad.onnx", fault=fault), "good": forecaster(tmp_path / "good.onnx", seed=3)}
    answers, ensemble, told = asked(members, BARS[:40])
    expected = ["warming up"] * 12 + [state if rose else "ok" for rose in ROSE[12:40]]
    assert states(answers, "bad") == expected and expected.count(state) > 3
    assert states(answers, "good") == states(answers, "ensemble") == ["warming up"] * 12 + ["ok"] * 28
    assert ensemble.states["bad"] == {"warming up": 12, state: expected.count(state), "ok": expected.count("ok")}
    first = f"2024-01-08T00:{expected.index(state)}:00Z"
    assert len(told) == 1 and told[0].startswith(f"bad: {state} at {first}, left out there: ")
    for at in answers[12:]:
        good, own = at.replies[1].answer, at.replies[-1].answer
        assert good is not None and own is not None
        if at.replies[0].state == state:
            assert own.quantiles is not None and np.array_equal(own.quantiles, good.quantiles)


def test_what_is_said_does_not_depend_on_how_many_are_asked_at_once(tmp_path: Path, asked: Asked) -> None:
    members = {f"member {number}": forecaster(tmp_path / f"{number}.onnx", seed=number, horizon=number) for number in range(1, 5)}
    members |= {"worse": forecaster(tmp_path / "worse.onnx", fault="raise"), "bad": forecaster(tmp_path / "bad.onnx", fault="nan")}
    members["agent"] = agent(tmp_path / "agent.onnx")
    alone, ensemble, told = asked(members, BARS)
    for at_once in (2, 7):
        answers, other, said = asked(members, BARS, at_once=at_once)
        assert [as_document(at) for at in answers] == [as_document(at) for at in alone]
        assert said == told and len(told) == 2 and other.state() == ensemble.state()


@pytest.mark.parametrize("lazy", [False, True])
def test_members_in_memory_are_asked_at_the_same_time(lazy: bool) -> None:
    """From their second answer on: at the first each is asked alone, since what it takes is measured there. Lazily always alone."""
    meet, together = threading.Barrier(2), []

    class Meeting(Counted):
        def answer(self, market: Market) -> Answer:
            try:
                meet.wait(timeout=0.2 if lazy or market.age == 1 else 20)
                together.append(market.age)
            except threading.BrokenBarrierError:
                meet.reset()
            return super().answer(market)

    members = [Meeting("a"), Meeting("b"), Counted("late", needs=3)]
    names = [member.name for member in members]
    residency = Residency(members, dict.fromkeys(names, 1), 3, lazy=lazy)
    residency.load_all()
    ensemble = Ensemble(members, dict.fromkeys(names, 1.0), "sign_vote", 1, residency, 2, [].append)
    market = Market(MINUTE, None, 2)
    for bar in BARS[:3]:
        market.push(bar)
        ensemble.answer(market)
    ensemble.close()
    assert together == ([] if lazy else [2, 2, 3, 3]) and ensemble.states["late"] == {"warming up": 2, "ok": 1}


def test_too_few_members_give_no_answer(tmp_path: Path, asked: Asked) -> None:
    members = {"bad": forecaster(tmp_path / "bad.onnx", fault="nan"), "good": forecaster(tmp_path / "good.onnx", seed=3)}
    answers, ensemble, _ = asked(members, BARS[:30], minimum=2)
    assert states(answers, "ensemble") == ["warming up"] * 12 + ["no answer" if rose else "ok" for rose in ROSE[12:30]]
    assert ensemble.bars == 30


def test_a_member_that_keeps_failing_is_asked_no_more(tmp_path: Path, asked: Asked) -> None:
    rising = [Bar(bar.time, "ES", np.array([100.0, 101 + i, 99, 100.5 + i, 1])) for i, bar in enumerate(BARS[:40])]
    members = {"bad": forecaster(tmp_path / "bad.onnx", fault="raise"), "good": forecaster(tmp_path / "good.onnx")}
    answers, _, told = asked(members, rising)
    failed = ["failed"] * GIVEN_UP_AFTER
    assert states(answers, "bad") == ["warming up"] * 12 + failed + ["left out"] * (28 - GIVEN_UP_AFTER)
    said = "bars in a row without an answer, up to 2024-01-08T00:21:00Z; not asked any more, but again after a restart"
    assert told[1] == f"bad: {GIVEN_UP_AFTER} {said}"
    assert states(answers, "good")[12:] == ["ok"] * 28

    answers, _, _ = asked({"bad": tmp_path / "bad.onnx"}, rising)
    assert states(answers, "ensemble")[-1] == "no answer"


def test_lookbacks_of_their_own_and_a_window_that_fills_anew_in_each_segment(tmp_path: Path, asked: Asked) -> None:
    members = {
        "short": forecaster(tmp_path / "a.onnx", lookback=3, warmup=2),
        "long": forecaster(tmp_path / "b.onnx", lookback=20, warmup=5),
        "agent": agent(tmp_path / "c.onnx"),
    }
    answers, ensemble, _ = asked(members, BARS[:30] + BARS[32:60])
    for name, needs in (("short", 5), ("long", 25), ("agent", 9)):
        assert states(answers, name) == ["warming up"] * (needs - 1) + ["ok"] * (31 - needs) + ["warming up"] * (needs - 1) + ["ok"] * (
            29 - needs
        )
    assert [at.segment for at in answers] == [0] * 30 + [1] * 28
    assert ensemble.latency["long"].summary()["bars"] == 10


def test_an_agent_holds_what_it_answered_and_nothing_at_the_start_of_a_segment(tmp_path: Path, asked: Asked) -> None:
    path = agent(tmp_path / "a.onnx", lookback=4, warmup=5)
    answers, _, _ = asked({"agent": path}, BARS[:30] + BARS[32:60])
    member = open_member("agent", MemberRecipe(path=path), threads=1, shared=False)
    member.load()
    session, held, segment = member._session, 0.0, 0  # type: ignore[attr-defined]
    market = Market(MINUTE, None, 20)
    for bar, at in zip(BARS[:30] + BARS[32:60], answers, strict=True):
        market.push(bar)
        held, segment = held if market.segment == segment else 0.0, market.segment
        if at.replies[0].answer is not None:
            past = market.history(4)[None, :, :225]
            (scores,) = session.run(["scores"], {"history": past, "position": np.array([[held]], np.float32)})[0]
            held = float(np.argmax(scores) - 1)
            assert at.replies[0].answer.position == held
    positions = {at.replies[0].answer.position for at in answers if at.replies[0].answer is not None}
    assert len(positions) > 1


def test_after_a_bar_without_an_answer_an_agent_holds_nothing(tmp_path: Path) -> None:
    """Long whenever it answers: not where its model raises, nor where it is not asked. The backtest's ledger is flat there too."""
    fed = []

    class AlwaysLong:
        def run(self, _: object, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
            fed.append(batch["position"].item())
            if len(fed) == 3:
                raise RuntimeError
            return [np.array([[0.0, 0.0, 1.0]])]

    member = open_member("agent", MemberRecipe(path=agent(tmp_path / "a.onnx")), threads=1, shared=False)
    member.load()
    member._session = AlwaysLong()  # type: ignore[attr-defined]
    market = Market(MINUTE, None, 20)
    for number, bar in enumerate(BARS[:16]):
        market.push(bar)
        if member.ready(market) and number != 13:
            with suppress(RuntimeError):
                member.answer(market)
    assert fed == [0, 1, 1, 0, 1, 0, 1]  # raised at the third, not asked after the fifth


def test_a_rule_without_use_for_a_member_says_so_once(tmp_path: Path, asked: Asked) -> None:
    members = {"agent": agent(tmp_path / "a.onnx"), "tft": forecaster(tmp_path / "b.onnx")}
    answers, ensemble, told = asked(members, BARS[:20], rule="weighted_quantiles")
    assert told == ["agent: gives no quantiles, so that the rule has no use for its answers"]
    assert ensemble.unusable == {"agent": "gives no quantiles"}
    own = answers[-1].replies[-1].answer
    assert own is not None and own.levels == LEVELS
