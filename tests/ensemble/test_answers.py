"""Answers: what a member says is a position and perhaps a forecast, and nothing else passes for one."""

import re

import numpy as np
import pytest

from tftq.ensemble.answers import Answer
from tftq.errors import AnswerError

LEVELS = (0.1, 0.5, 0.9)


def forecast(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


@pytest.mark.parametrize(("median", "position"), [(0.002, 1.0), (-0.002, -1.0), (0.0, 0.0)])
def test_a_forecaster_holds_the_sign_of_its_medians_next_step(median: float, position: float) -> None:
    answer = Answer.of_forecast([[-1, median, 1], [-2, -median, 2]], LEVELS)
    assert answer.position == position
    assert answer.quantiles is not None and answer.quantiles.dtype == np.float32 and answer.quantiles.shape == (2, 3)
    assert answer.median.tolist() == pytest.approx([median, -median]) and answer.levels == LEVELS


@pytest.mark.parametrize(("scores", "position"), [([0, 2, 1], 0), ([5, 2, 1], -1), ([1, 2, 2], 0), ([3, 3, 3], -1), ([-3, -2, -1], 1)])
def test_an_agent_takes_the_position_of_the_highest_score(scores: list[float], position: float) -> None:
    answer = Answer.of_scores(scores, (-1, 0, 1))
    assert answer.position == position and answer.quantiles is None and answer.levels == ()


@pytest.mark.parametrize("position", [1.01, -1.01, float("nan"), float("inf")])
def test_a_position_out_of_range_is_refused(position: float) -> None:
    with pytest.raises(AnswerError, match=f"a position of {position:g}; allowed: from -1 to 1"):
        Answer(position)


@pytest.mark.parametrize(
    ("quantiles", "levels", "said"),
    [
        (None, LEVELS, "levels (0.1, 0.5, 0.9) without quantiles"),
        (forecast((1, 2)), (0.1, 0.9), "the levels (0.1, 0.9); allowed: ascending ones with the median, 0.5, among them"),
        (forecast((1, 2)), (0.5, 0.1), "the levels (0.5, 0.1)"),
        (forecast((1, 2)), (0.5, 0.5), "the levels (0.5, 0.5)"),
        (forecast((1, 2)), LEVELS, "quantiles [1, 2]; allowed: [horizon, 3]"),
        (forecast((1, 2, 3))[0], LEVELS, "quantiles [3]; allowed: [horizon, 3]"),
        (np.zeros((0, 3), np.float32), LEVELS, "quantiles [0, 3]"),
        (forecast((1, 2, 3), (1, np.nan, np.inf)), LEVELS, "2 of 6 quantiles are not finite"),
        (forecast((1, 2, 3), (1, 3, 2)), LEVELS, "out of order at step 2 of the horizon: [1.0, 3.0, 2.0]"),
    ],
)
def test_quantiles_that_are_none_are_refused(quantiles: np.ndarray | None, levels: tuple[float, ...], said: str) -> None:
    with pytest.raises(AnswerError, match=re.escape(said)):
        Answer(0.0, quantiles, levels)


@pytest.mark.parametrize("scores", [[1, 2], [1, 2, float("nan")], [[1, 2, 3]]])
def test_scores_that_are_none_are_refused(scores: list[float]) -> None:
    with pytest.raises(AnswerError, match=r"allowed: a finite one for each of the positions \[-1, 0, 1\]"):
        Answer.of_scores(scores, (-1, 0, 1))
