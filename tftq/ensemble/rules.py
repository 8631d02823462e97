"""Rules that combine the members' answers at one bar into the ensemble's: pure functions, independent of the answers' order.

Every rule takes the answers of the members that gave one. Those that did not are simply not among them: the weights of the others are
renormalised. Forecasts of different lengths are combined over their common first steps, those of different levels at their common ones;
every forecast has the median, so there is one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tftq.ensemble.answers import MEDIAN, Answer

HALF = 0.5
ROUNDING = 1e-9  # a share of all weights within which values tie: 0.1 + 0.2 against 0.3


@dataclass(frozen=True)
class Combined:
    """The result of a rule for one bar's answers.

    Args:
        answer: the ensemble's; None where the rule could use fewer than `minimum` members.
        left_out: members that answered, but whose answer the rule cannot use -> why.
    """

    answer: Answer | None
    left_out: Mapping[str, str] = field(default_factory=dict)


Rule = Callable[[Mapping[str, Answer], Mapping[str, float], int], Combined]


def weighted_quantiles(answers: Mapping[str, Answer], weights: Mapping[str, float], minimum: int = 1) -> Combined:
    """Average the forecasts by weight, level by level, which keeps quantiles in order; an agent has none and is left out.

    Args:
        answers: of the members that have one at this bar.
        weights: of all members, each above 0.
        minimum: usable members needed for an answer, 1 or more.

    Returns:
        The average forecast; its position is the sign of its median's next step.

    Source: averaging of quantiles, Vincent 1912; Lichtendahl, Grushka-Cockayne and Winkler 2013 on why not of probabilities.
    """
    forecasts = _forecasts(answers)
    left_out = {name: "gives no quantiles" for name in answers if name not in forecasts}
    if len(forecasts) < minimum:
        return Combined(None, left_out)
    stack, levels = _stack(forecasts)
    return Combined(Answer.of_forecast(_average(stack, _shares(forecasts, weights)), levels), left_out)


def median(answers: Mapping[str, Answer], weights: Mapping[str, float], minimum: int = 1) -> Combined:
    """Take the weighted median of the positions, and of the forecasts level by level, which keeps quantiles in order.

    Where exactly half of the weight lies on either side it is the middle of the two values there.

    Args, Returns: see `weighted_quantiles`; every member is usable, and the quantiles are those of the members that have any.
    """
    if len(answers) < minimum:
        return Combined(None)
    positions = np.array([answers[name].position for name in sorted(answers)])  # [members]
    position = float(_weighted_median(positions, _shares(answers, weights)))
    forecasts = _forecasts(answers)
    if not forecasts:
        return Combined(Answer(position))
    stack, levels = _stack(forecasts)
    return Combined(Answer(position, _weighted_median(stack, _shares(forecasts, weights)).astype(np.float32), levels))


def sign_vote(answers: Mapping[str, Answer], weights: Mapping[str, float], minimum: int = 1) -> Combined:
    """Take the sign with the most weight, -1 or 1; a tie, and a vote without votes, is 0. No quantiles.

    Args, Returns: see `weighted_quantiles`; every member is usable, and one whose position is 0 has no vote.
    """
    if len(answers) < minimum:
        return Combined(None)
    signs = np.array([np.sign(answers[name].position) for name in sorted(answers)])  # [members]
    balance = float(signs @ _shares(answers, weights))
    return Combined(Answer(0.0 if abs(balance) <= ROUNDING else float(np.sign(balance))))


def risk_weighted(answers: Mapping[str, Answer], weights: Mapping[str, float], minimum: int = 1) -> Combined:
    """Average positions and forecasts by weight, where a forecaster has the more weight the more certain its next step is.

    A forecaster's uncertainty is `u = 1 + width / |median|` of its next step, the width from the lowest to the highest level that the
    forecasters have in common. They share the sum of their weights in proportion to `weight / u`; where every median is 0 (u infinite), in
    proportion to the weight alone. An agent, and a forecaster of the median alone, tells no uncertainty, which does not make it certain:
    it keeps its weight.

    Args, Returns: see `weighted_quantiles`; every member is usable, the position may be a fraction, and the quantiles are those of the
        members that have any.

    Source: weights in inverse proportion to the error, Bates and Granger 1969; here to the error that a member itself expects.
    """
    if len(answers) < minimum:
        return Combined(None)
    names = sorted(answers)
    by_risk = _by_risk(answers, weights)
    positions, shares = np.array([answers[name].position for name in names]), _shares(answers, by_risk)  # [members]
    position = float(np.clip(_average(positions, shares), -1, 1))
    if abs(position) <= ROUNDING * float(_average(np.abs(positions), shares)):
        position = 0.0  # the rounding error of opposites that cancel would count as a side
    forecasts = _forecasts(answers)
    if not forecasts:
        return Combined(Answer(position))
    stack, levels = _stack(forecasts)
    return Combined(Answer(position, _average(stack, _shares(forecasts, by_risk)).astype(np.float32), levels))


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (weighted_quantiles, median, sign_vote, risk_weighted)}


def _forecasts(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    return {name: answer for name, answer in answers.items() if answer.quantiles is not None}


def _stack(forecasts: Mapping[str, Answer]) -> tuple[np.ndarray, tuple[float, ...]]:
    """Stack the forecasts in the order of their members' names, float64 [members, common steps, common levels], and these levels."""
    horizon = min(len(answer.median) for answer in forecasts.values())
    levels = tuple(sorted(set.intersection(*(set(answer.levels) for answer in forecasts.values()))))
    columns = []
    for name in sorted(forecasts):
        answer = forecasts[name]
        assert answer.quantiles is not None
        columns.append(answer.quantiles[:horizon, [answer.levels.index(level) for level in levels]])
    return np.stack(columns).astype(np.float64), levels


def _shares(answers: Mapping[str, Answer], weights: Mapping[str, float]) -> np.ndarray:
    """Return the weights of these members in the order of their names, as shares of their sum, float64 [members]."""
    own = np.array([weights[name] for name in sorted(answers)], np.float64)
    return own / own.sum()


def _average(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Average over the first axis; all columns are summed in the same order, so that rounding keeps columns in order too."""
    average: np.ndarray = (values * shares.reshape(-1, *[1] * (values.ndim - 1))).sum(0)
    return average


def _weighted_median(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Take the weighted median over the first axis: the middle of the first values with at least half, and with more, of the weight."""
    order = values.argsort(axis=0, kind="stable")
    ascending = np.take_along_axis(values, order, axis=0)
    reached = shares[order].cumsum(axis=0)
    low, high = ((reached >= HALF - ROUNDING).argmax(0), (reached > HALF + ROUNDING).argmax(0))
    ends = [np.take_along_axis(ascending, np.expand_dims(place, 0), axis=0)[0] for place in (low, high)]
    middle: np.ndarray = (ends[0] + ends[1]) / 2
    return middle


def _by_risk(answers: Mapping[str, Answer], weights: Mapping[str, float]) -> dict[str, float]:
    """Compute the weights of `risk_weighted`."""
    own = {name: weights[name] for name in answers}
    with_spread = {name: answer for name, answer in _forecasts(answers).items() if len(answer.levels) > 1}
    if not with_spread:
        return own
    stack, levels = _stack(with_spread)
    size, width = np.abs(stack[:, 0, levels.index(MEDIAN)]), stack[:, 0, -1] - stack[:, 0, 0]  # [members], of the next step
    certainty = np.divide(size, size + width, out=np.zeros_like(size), where=size > 0)  # 1 / u
    shares = np.array([own[name] for name in sorted(with_spread)])
    claimed = shares * certainty
    if len(levels) > 1 and claimed.any():
        own |= dict(zip(sorted(with_spread), (shares.sum() * claimed / claimed.sum()).tolist(), strict=True))
    return own
