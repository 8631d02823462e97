"""Rules: values worked out by hand, and laws that hold for whatever members say."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tftq.ensemble.answers import Answer
from tftq.ensemble.rules import RULES, Combined, Rule, median, risk_weighted, sign_vote, weighted_quantiles

LEVELS = (0.1, 0.5, 0.9)
EQUAL = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def forecast(*rows: tuple[float, ...], levels: tuple[float, ...] = LEVELS) -> Answer:
    return Answer.of_forecast(rows, levels)


def answered(found: Combined) -> Answer:
    assert found.answer is not None
    return found.answer


def table(answer: Answer) -> list[list[float]]:
    assert answer.quantiles is not None and answer.quantiles.dtype == np.float32
    rows: list[list[float]] = answer.quantiles.tolist()
    return rows


def test_quantiles_are_averaged_level_by_level() -> None:
    members = {"a": forecast((-4, 2, 4), (-8, 4, 8)), "b": forecast((-8, -2, 0), (0, 0, 0))}
    found = answered(weighted_quantiles(members, {"a": 3, "b": 1}))
    assert table(found) == [[-5, 1, 3], [-6, 3, 6]]
    assert found.position == 1 and found.levels == LEVELS
    assert answered(weighted_quantiles(members, {"a": 1, "b": 3})).position == -1
    assert answered(weighted_quantiles(members, EQUAL)).position == 0


def test_an_agent_has_no_quantiles_to_average() -> None:
    found = weighted_quantiles({"a": forecast((1, 2, 3)), "dqn": Answer(-1)}, {"a": 1, "dqn": 100})
    assert table(answered(found)) == [[1, 2, 3]] and found.left_out == {"dqn": "gives no quantiles"}
    assert weighted_quantiles({"dqn": Answer(-1)}, {"dqn": 1}) == Combined(None, {"dqn": "gives no quantiles"})


def test_the_median_is_taken_level_by_level_and_of_all_positions() -> None:
    members = {"a": forecast((-3, 0, 1)), "b": forecast((-2, -1, 5)), "c": forecast((-9, -2, -1)), "d": Answer(1)}
    found = answered(median(members, EQUAL))
    assert table(found) == [[-3, -1, 1]]
    assert found.position == -0.5  # of -1, -1, 0 and 1: the middle of -1 and 0
    assert answered(median(members, EQUAL | {"d": 1.1})).position == 0
    assert answered(median(members, EQUAL | {"b": 10})).position == -1


def test_a_median_between_two_halves_is_their_middle_whatever_rounding_says() -> None:
    members = {"a": Answer(-1), "b": Answer(-1), "c": Answer(1)}
    assert answered(median(members, {"a": 0.1, "b": 0.2, "c": 0.3})).position == 0
    assert answered(median(members, {"a": 0.1, "b": 0.2, "c": 0.29})).position == -1


def test_signs_are_counted_by_weight() -> None:
    members = {"a": Answer(-0.1), "b": Answer(1), "c": Answer(0)}
    assert answered(sign_vote(members, {"a": 2, "b": 1, "c": 9})).position == -1
    assert answered(sign_vote(members, {"a": 1, "b": 2, "c": 9})).position == 1
    assert answered(sign_vote(members, EQUAL)).position == 0
    tie = {"a": Answer(1), "b": Answer(1), "c": Answer(-1)}
    assert answered(sign_vote(tie, {"a": 0.1, "b": 0.2, "c": 0.3})).position == 0  # though 0.1 + 0.2 > 0.3 in floating point
    assert answered(sign_vote({"a": forecast((1, 2, 3))}, EQUAL)).quantiles is None


def test_the_surer_forecaster_has_more_weight() -> None:
    members = {"a": forecast((1, 2, 3)), "b": forecast((-5, -1, 2)), "d": Answer(-1)}  # u: 1 + 2/2 = 2 and 1 + 7/1 = 8
    found = answered(risk_weighted(members, EQUAL))
    # Of their weight 2, a has 1/2 : 1/8 = 4/5, which is 1.6, and b 0.4; the agent keeps 1.
    assert found.position == pytest.approx((1.6 - 0.4 - 1) / 3)
    assert table(found)[0] == pytest.approx([0.8 * 1 - 0.2 * 5, 0.8 * 2 - 0.2 * 1, 0.8 * 3 + 0.2 * 2])


def test_opposites_that_cancel_leave_no_side() -> None:
    members = {"a": Answer(1), "b": Answer(1), "c": Answer(-1)}
    assert answered(risk_weighted(members, {"a": 0.1, "b": 0.2, "c": 0.3})).position == 0  # not the 5e-17 of floating point
    assert answered(risk_weighted({"a": Answer(1e-6)}, EQUAL)).position == 1e-6


def test_one_that_sees_no_change_has_no_say_and_none_that_does_leaves_the_weights() -> None:
    still, moving = forecast((-1, 0, 1)), forecast((0, 1, 9))
    assert table(answered(risk_weighted({"a": still, "b": moving}, EQUAL))) == [[0, 1, 9]]
    assert table(answered(risk_weighted({"a": still, "b": forecast((-3, 0, 3))}, EQUAL))) == [[-2, 0, 2]]


def test_one_that_tells_no_width_keeps_its_weight() -> None:
    single = forecast((-4,), levels=(0.5,))
    found = answered(risk_weighted({"a": forecast((1, 2, 3)), "b": forecast((-5, -1, 2)), "c": single}, EQUAL))
    assert found.position == pytest.approx((1.6 - 0.4 - 1) / 3)
    assert found.levels == (0.5,) and table(found)[0] == pytest.approx([(1.6 * 2 - 0.4 * 1 - 4) / 3])
    apart = {"a": forecast((1, 2), levels=(0.1, 0.5)), "b": forecast((-1, 2), levels=(0.5, 0.9))}  # no width in common
    assert answered(risk_weighted(apart, EQUAL)).position == 0


@pytest.mark.parametrize("rule", [weighted_quantiles, median, risk_weighted])
def test_forecasts_are_combined_over_what_they_have_in_common(rule: Rule) -> None:
    long = forecast((1, 2, 3), (1, 2, 3), (7, 8, 9))
    fine = forecast((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), levels=(0.05, 0.1, 0.5, 0.9, 0.95))
    found = answered(rule({"a": long, "b": fine}, EQUAL, 1))
    assert found.levels == LEVELS and table(found) == [[1, 2, 3], [1, 2, 3]]


@every_rule
def test_too_few_members_give_no_answer(rule: Rule) -> None:
    members = {"a": forecast((1, 2, 3)), "b": forecast((1, 2, 3))}
    assert rule(members, EQUAL, 3).answer is None and rule({}, EQUAL, 1).answer is None
    assert answered(rule(members, EQUAL, 2)).position == 1


positions = st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1, 1)
values = st.floats(-1, 1, width=32)


@st.composite
def some_answer(draw: st.DrawFn) -> Answer:
    if draw(st.booleans()):
        return Answer(draw(positions))
    levels = draw(st.sampled_from([LEVELS, (0.5,), (0.05, 0.1, 0.5, 0.9), (0.25, 0.5, 0.75)]))
    horizon = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(values, min_size=len(levels), max_size=len(levels)), min_size=horizon, max_size=horizon))
    return Answer.of_forecast(np.sort(np.array(rows, np.float32), axis=1), levels)


names = st.permutations(list("abcd"))
members = st.dictionaries(st.sampled_from("abcd"), some_answer(), min_size=1)
shares = st.fixed_dictionaries(dict.fromkeys("abcd", st.floats(0.01, 100)))


def same(found: Combined, other: Combined) -> bool:
    if found.answer is None or other.answer is None:
        return found.answer is other.answer
    one, two = found.answer, other.answer
    equal = np.array_equal(*(np.zeros(0) if answer.quantiles is None else answer.quantiles for answer in (one, two)))
    return equal and one.position == two.position and one.levels == two.levels


@every_rule
@given(answers=members, weights=shares, order=names)
def test_the_order_of_the_members_changes_nothing(
    rule: Rule, answers: dict[str, Answer], weights: Mapping[str, float], order: list[str]
) -> None:
    turned = {name: answers[name] for name in order if name in answers}
    assert same(rule(answers, weights, 1), rule(turned, weights, 1))


@every_rule
@given(answer=some_answer(), weights=shares)
def test_one_member_alone_gives_its_own_answer(rule: Rule, answer: Answer, weights: Mapping[str, float]) -> None:
    found = rule({"a": answer}, weights, 1)
    expected = answer
    if rule is sign_vote:
        expected = Answer(float(np.sign(answer.position)))
    if rule is weighted_quantiles and answer.quantiles is None:
        assert found.answer is None
    else:
        assert same(found, Combined(expected))


@every_rule
@given(answers=members, weights=shares, scale=st.sampled_from([0.5, 2.0, 1024.0]))
def test_only_proportions_of_weights_count_and_those_of_the_absent_do_not(
    rule: Rule, answers: dict[str, Answer], weights: Mapping[str, float], scale: float
) -> None:
    changed = {name: scale * weight if name in answers else 1e6 for name, weight in weights.items()}
    assert same(rule(answers, weights, 1), rule(answers, changed, 1))


@every_rule
@given(answers=members, weights=shares)
def test_what_comes_out_lies_between_what_went_in(rule: Rule, answers: dict[str, Answer], weights: Mapping[str, float]) -> None:
    answer = rule(answers, weights, 1).answer  # whose making checks that quantiles are in order and the position within -1 and 1
    assume(answer is not None)
    assert answer is not None
    if rule in (median, risk_weighted):
        given_positions = [member.position for member in answers.values()]
        assert min(given_positions) - 1e-12 <= answer.position <= max(given_positions) + 1e-12
    if answer.quantiles is not None:
        first = [member.median[0] for member in answers.values() if member.quantiles is not None]
        assert min(first) - 1e-6 <= answer.median[0] <= max(first) + 1e-6
