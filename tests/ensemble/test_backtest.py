"""Backtests: ledgers worked out by hand, nothing over gaps, nothing from the future, and no boast."""

import json
import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.ensemble.tables import BEGIN, MINUTE, answers_table, random_members
from tftq.ensemble.answers import Answer
from tftq.ensemble.backtest import Backtest, Bars, backtest, drawdowns, ledger
from tftq.ensemble.recipe import BUY_AND_HOLD, NO_CHANGE
from tftq.errors import DataError, TooFewBarsError

LEVELS = (0.1, 0.5, 0.9)
LONG, FLAT, SHORT = Answer(1), Answer(0), Answer(-1)


def run(table: pa.Table, **options: float) -> Backtest:
    return backtest(table, **{"cost_ticks": 1, "tick": 0.25} | options)  # type: ignore[arg-type]


def test_a_ledger_worked_out_by_hand() -> None:
    """Long for two bars, short for one, nothing for one, long again; out at the last close. A change of 1 costs 0.5."""
    close = [100.0, 110.0, 100.0, 90.0, 80.0, 160.0]
    found = run(answers_table(close, {"a": [LONG, LONG, SHORT, FLAT, LONG, SHORT]}), cost_ticks=2)
    score = found.scores["a"]
    gross = [10 / 100, -10 / 110, 10 / 100, 0, 80 / 80, 0]
    costs = [0.5 / 100, 0, 2 * 0.5 / 100, 0.5 / 90, 0.5 / 80, 0.5 / 160]
    equity = np.cumsum(np.array(gross) - np.array(costs))
    assert found.equity["a"] == pytest.approx(equity)
    assert score.gross_return == pytest.approx(sum(gross)) and score.net_return == pytest.approx(sum(gross) - sum(costs))
    assert score.max_drawdown == pytest.approx(equity[0] - equity[1])  # from 0.095 down by 10/110
    assert score.turnover == 6 and score.trades == 5  # in, turned, out, in, out
    assert (score.hits, score.misses, score.flat, score.unmoved, score.answers) == (3, 1, 1, 0, 6)  # the last answer is not judged
    assert score.hit_rate == 0.75 and score.forecast is None


def test_fractions_of_a_position_earn_and_cost_fractions() -> None:
    score = run(answers_table([100.0, 110.0, 121.0], {"a": [Answer(0.5), Answer(-0.25), FLAT]})).scores["a"]
    assert score.gross_return == pytest.approx(0.5 * 0.1 - 0.25 * 0.1)
    assert score.gross_return - score.net_return == pytest.approx(0.25 * (0.5 / 100 + 0.75 / 110 + 0.25 / 121))
    assert score.turnover == 1.5 and score.trades == 3


def test_a_fall_at_once_is_a_drawdown_from_nothing() -> None:
    bars = Bars(np.arange(3), np.zeros(3, np.int32), np.array([100.0, 90.0, 99.0]))
    assert drawdowns(ledger(bars, np.ones(3), 0.0).equity) == pytest.approx([0.1, 0, 0])
    assert drawdowns(ledger(bars, -np.ones(3), 0.0).equity) == pytest.approx([0, 0.1, 0.1])
    assert not drawdowns(ledger(bars, np.full(3, np.nan), 1.0).equity).any()


def test_nothing_is_held_over_a_gap() -> None:
    """The price leaps by half between two segments; whoever is long is out before and pays to be in again."""
    close = [100.0, 101.0, 151.5, 153.015]
    found = run(answers_table(close, {"a": 4 * [LONG]}, segments=[0, 0, 1, 1]), cost_ticks=4)  # 1 a change
    score = found.scores["a"]
    assert score.gross_return == pytest.approx(0.01 + 0.01)
    assert score.net_return == pytest.approx(0.02 - 1 / 100 - 1 / 101 - 1 / 151.5 - 1 / 153.015)
    assert score.trades == 4 and score.turnover == 4
    assert (score.hits, score.misses) == (2, 0)
    held = found.scores[BUY_AND_HOLD]  # the same ledger
    assert (held.net_return, held.turnover, held.hit_rate) == (score.net_return, 4, 1)


held = st.none() | st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1, 1, width=32)
path = st.lists(st.tuples(st.floats(50, 200), st.booleans(), held), min_size=2, max_size=12)


@given(path, st.floats(0, 3))
def test_a_ledger_equals_one_kept_bar_by_bar(bars: list[tuple[float, bool, float | None]], cost_ticks: float) -> None:
    """Entries of a cash book in a loop: at each close the position is changed and paid for, at the next its gain is booked."""
    close, gaps, positions = zip(*bars, strict=True)
    segments = np.cumsum([False, *gaps[1:]]).tolist()
    assume(any(one == two for one, two in pairwise(segments)))
    cash, holding, most, fall, turnover = 0.0, 0.0, 0.0, 0.0, 0.0
    for bar, price in enumerate(close):
        goes_on = bar + 1 < len(close) and segments[bar + 1] == segments[bar]
        wanted = (positions[bar] or 0.0) if goes_on else 0.0
        turnover += abs(wanted - holding)
        cash -= abs(wanted - holding) * cost_ticks * 0.25 / price
        holding = wanted
        cash += holding * (close[bar + 1] - price) / price if goes_on else 0.0
        most, fall = max(most, cash), max(fall, most - cash)
    answers = [None if position is None else Answer(position) for position in positions]
    found = run(answers_table(close, {"a": answers}, segments=segments), cost_ticks=cost_ticks).scores["a"]
    assert found.net_return == pytest.approx(cash, abs=1e-6) and found.turnover == pytest.approx(turnover, abs=1e-6)
    assert found.max_drawdown == pytest.approx(fall, abs=1e-6)


def test_a_missing_answer_holds_nothing() -> None:
    score = run(answers_table([100.0, 110.0, 121.0, 133.1], {"a": [LONG, None, LONG, LONG], "b": 4 * [FLAT]})).scores["a"]
    assert score.gross_return == pytest.approx(0.2) and score.trades == 4 and score.answers == 3
    assert score.hits == 2


def test_a_price_that_stays_is_neither_hit_nor_miss() -> None:
    score = run(answers_table([100.0, 100.0, 101.0], {"a": [LONG, FLAT, LONG]})).scores["a"]
    assert (score.hits, score.misses, score.flat, score.unmoved) == (0, 0, 1, 1)
    assert score.hit_rate is None


def test_risk_and_coverage_of_forecasts() -> None:
    """Two steps over five bars in segments of three and two: one whole window, whose returns are 0.1 and -0.1."""
    close = 100 * np.exp([0, 0.1, -0.1, 0.5, 0.5])
    forecast = Answer.of_forecast([[0.0, 0.2, 0.3], [0.0, 0.0, 0.3]], LEVELS)
    found = run(answers_table(close.tolist(), {"tft": 5 * [forecast], "dqn": 5 * [LONG]}, segments=[0, 0, 0, 1, 1]))
    judged = found.scores["tft"].forecast
    assert judged is not None and judged["windows"] == 1 and judged["horizon"] == 2
    # Pinball at 0.1, -0.1: P10 0.01, 0.09; P50 0.05, 0.05; P90 0.02, 0.04. Σ|y| is 0.2; the interval holds the first.
    assert judged["q_risk"] == pytest.approx({"0.1": 1.0, "0.5": 1.0, "0.9": 0.6}, abs=1e-6)
    assert judged["loss"] == pytest.approx(0.26 / 6, abs=1e-7) and judged["coverage"] == 0.5
    unchanged = found.scores[NO_CHANGE].forecast
    assert unchanged is not None and unchanged["q_risk"] == pytest.approx({"0.5": 1.0}) and "coverage" not in unchanged
    assert unchanged["loss"] == pytest.approx(0.05) and found.scores["dqn"].forecast is None
    assert found.horizon == 2 and found.independent_windows == 1


def test_forecasts_are_judged_over_what_all_of_a_members_have() -> None:
    """An ensemble whose longer, finer member answered only once."""
    short = Answer.of_forecast([[1, 2, 3], [1, 2, 3]], LEVELS)
    long = Answer.of_forecast([[0, 1, 2, 3, 4]] * 3, (0.05, 0.1, 0.5, 0.9, 0.95))
    names = ("P5", "P10", "P50", "P90", "P95")
    found = run(answers_table([1, 2, 3, 4, 5], {"ensemble": [None, long, short, short, short]}, names=names))
    judged = found.scores["ensemble"].forecast
    assert judged is not None and judged["horizon"] == 2 and list(judged["q_risk"]) == ["0.1", "0.5", "0.9"] and judged["windows"] == 2
    nothing = run(answers_table([1, 2, 3], {"ensemble": [short, short, short], "b": 3 * [LONG]}, segments=[0, 0, 1]))
    assert nothing.scores["ensemble"].forecast is None  # no window has its whole horizon


def test_bars_of_training_do_not_count() -> None:
    close = [100.0, 50.0, 60.0, 66.0, 33.0]
    table = answers_table(close, {"a": 5 * [LONG], "tft": 5 * [Answer.of_forecast([[1, 2, 3]], LEVELS)]})
    found = run(table, since=BEGIN + MINUTE, cost_ticks=0)
    assert found.learned == 2 and found.since == BEGIN + MINUTE and len(found.bars) == 3
    assert found.scores["a"].gross_return == pytest.approx(0.1 - 0.5) and found.scores["a"].answers == 3
    assert run(table, since=BEGIN - 5).learned == 0 and "trained on these very bars" not in run(table, since=BEGIN - 5).warning
    assert run(table).learned == 0 and "Members may have been trained on these very bars" in run(table).warning
    with pytest.raises(DataError, match="no two bars in a row after 2024-01-08T07:13:00Z, the last of training"):
        run(table, since=BEGIN + 3 * MINUTE)


def test_the_future_changes_nothing_before_it() -> None:
    """Whatever comes after the 30th bar, in prices or answers, what was earned up to it and the windows judged by then are the same."""
    source = np.random.default_rng(1)
    close = 100 + source.normal(0, 1, 60).cumsum()
    members = random_members(close)
    order = np.r_[np.arange(30), 30 + source.permutation(30)]
    shuffled = {name: [own[bar] for bar in order] for name, own in members.items()}
    one, two = run(answers_table(close.tolist(), members)), run(answers_table(close[order].tolist(), shuffled))
    for name in members:
        assert np.array_equal(one.equity[name][:29], two.equity[name][:29])  # the return from bar 28 ends at bar 29
        assert not np.array_equal(one.equity[name], two.equity[name])
    first = run(answers_table(close[:30].tolist(), {name: own[:30] for name, own in members.items()}))
    assert first.equity["dqn"][:29] == pytest.approx(one.equity["dqn"][:29])


def test_the_order_of_rows_and_the_resolution_of_times_change_nothing() -> None:
    close = (100 + np.random.default_rng(2).normal(0, 1, 30).cumsum()).tolist()
    members = random_members(np.array(close))
    table = answers_table(close, members)
    expected = run(table).summary()
    turned = table.take(pa.array(np.random.default_rng(3).permutation(len(table))))
    assert run(turned).summary() == expected
    assert run(answers_table(close, members, resolution="us")).summary() == expected


def test_the_summary_is_json_and_says_what_it_proves() -> None:
    close = (100 + np.random.default_rng(4).normal(0, 1, 48).cumsum()).tolist()
    found = run(answers_table(close, random_members(np.array(close)), segments=24 * [0] + 24 * [1]))
    summary = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert list(summary["scores"]) == ["dqn", "tft", "mamba2", "ensemble", BUY_AND_HOLD, NO_CHANGE]
    assert summary["bars"] == 48 and summary["segments"] == 2 and summary["horizon"] == 3
    assert summary["independent_windows"] == 2 * (23 // 3)
    judged = max(score.hits + score.misses for score in found.scores.values())
    assert summary["warning"] == (
        "A week of bars proves nothing. These are 0.1 days, from 2024-01-08T07:10:00Z to 2024-01-08T08:57:00Z, with 14 windows of 3 steps "
        f"that do not overlap; by chance alone a hit rate over {judged} bars strays {0.98 / math.sqrt(judged):.1%} from 50%. The next span "
        "may be of another kind, and beside 1 tick a change of position nothing is paid: no queue, no slippage, no order that is not "
        "filled. Members may have been trained on these very bars: nothing says otherwise."
    )
    assert summary["scores"][NO_CHANGE]["hit_rate"] is None and summary["scores"][NO_CHANGE]["trades"] == 0


def test_members_that_do_not_say_when_training_ended_are_warned_of() -> None:
    """Whether bars count is decided by what the others say."""
    table = answers_table([1.0, 2.0, 3.0], {name: 3 * [LONG] for name in "abc"})
    found = backtest(table, cost_ticks=1, tick=0.25, since=BEGIN - MINUTE, unsaid=["a", "c"])
    assert found.warning.endswith(" a, c may have been trained on these very bars: nothing says otherwise.")
    assert found.summary()["training_end_unsaid"] == ["a", "c"]
    assert "trained on these" not in backtest(table, cost_ticks=1, tick=0.25, since=BEGIN - MINUTE).warning


def test_nobody_answered() -> None:
    found = run(answers_table([1.0, 2.0], {"a": [None, None]}))
    assert found.scores["a"].hit_rate is None and found.scores[BUY_AND_HOLD].gross_return == 0
    assert "by chance" not in found.warning and "with 0 windows of 1 step that" in found.warning


def test_windows_after_bars_without_an_answer_are_not_counted() -> None:
    answers = [None, None, *(5 * [LONG]), None, LONG, LONG, LONG]
    found = run(answers_table([1.0] * 11, {"a": answers, "b": 11 * [None]}, segments=[0] * 8 + [1] * 3))
    assert found.independent_windows == 5 + 2  # the last bar of a segment is followed by none


def test_answers_that_cannot_be_judged_are_refused() -> None:
    table = answers_table([1.0, 2.0, 3.0], {"a": 3 * [LONG], "b": 3 * [LONG]})
    with pytest.raises(DataError, match="answers lack the columns segment, step; wanted are time, segment,"):
        run(table.drop_columns(["segment", "step"]))
    with pytest.raises(TooFewBarsError, match="no two bars in a row; give more bars"):
        run(table.slice(0, 0))
    other = answers_table([1.0, 2.0, 3.0], {"b": [SHORT, Answer.of_forecast([[1, 2, 3]], LEVELS), LONG]})
    for rows, minute in ((other.slice(0, 1), "10"), (other.slice(1, 1), "11"), (other.slice(2, 1), "12")):  # another, a forecast, the same
        for twice in (pa.concat_tables([table, rows]), pa.concat_tables([rows, table])):
            with pytest.raises(DataError, match=rf"answers hold 2 rows of b at 2024-01-08T07:{minute}:00Z, step 1; keep one of them"):
                run(twice)
    close = pa.array([1.0, 1.5, 2.0, 2.0, 3.0, 3.0])
    with pytest.raises(DataError, match="two closes or two segments of the bar at 2024-01-08T07:10:00Z"):
        run(table.set_column(2, "close", close))
    with pytest.raises(DataError, match="bars 1 min and 2 min apart in one segment; a gap begins another"):
        run(answers_table([1.0, 2.0, 3.0, 4.0], {"a": 4 * [LONG]}).take(pa.array([0, 1, 3])))
