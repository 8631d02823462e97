"""What a member takes and gives, out of its metadata or the recipe; what bars cannot feed is refused by name."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import MINUTE
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS
from tftq.ensemble.interface import Interface, foreign_interface, own_interface
from tftq.ensemble.recipe import ForeignRecipe
from tftq.errors import AnswerError, EnsembleError
from tftq.spec.metadata import AgentMetadata, ForecasterMetadata, Origin, parse_metadata


def described(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "role": "observed", "categories": 0, **more} for name in names]


def metadata(*without: str, **changes: Any) -> ForecasterMetadata | AgentMetadata:
    """What the file of a forecaster says, or that of an agent where it has positions."""
    values = {
        "version": 1,
        "model": "tft",
        "format": "fp32",
        "oldest_runtime": "1.18",
        "versions": {},
        "recipe": "by_hand",
        "recipe_hash": "abc",
        "target": "log return",
        "trained_until_ns": 7,
        "data": {"kind": "bars", "warmup": 50, "time_zone": "America/Chicago", "symbol": "ESZ3"},
        "step_ns": MINUTE,
        "inputs": {"history": described("body", "volume_z_5", "hour_sin_1"), "future": described(*CLOCK_COLUMNS)},
        "lookback": 60,
        "horizon": 10,
        "quantiles": [0.1, 0.5, 0.9],
        **changes,
    }
    return parse_metadata(json.dumps({key: value for key, value in values.items() if key not in without}), Path("m.onnx"))


def test_a_forecaster_says_all_of_itself() -> None:
    found = own_interface("tft", metadata())
    assert found == Interface(
        lookback=60,
        warmup=50,
        history={"history": ("body", "volume_z_5", "hour_sin_1")},
        output="forecast",
        gives="quantiles",
        horizon=10,
        future={"future": CLOCK_COLUMNS},
        levels=(0.1, 0.5, 0.9),
        step=MINUTE,
        time_zone="America/Chicago",
        symbol="ESZ3",
        trained_until=7,
    )
    assert found.needs == 110


def test_an_agent_takes_the_position_that_it_holds() -> None:
    inputs = {"history": described(*BAR_COLUMNS), "position": [{"name": "position", "role": "state", "categories": 0}]}
    found = own_interface("dqn", metadata("horizon", "quantiles", inputs=inputs, positions=[-1, 0, 1]))
    assert (found.gives, found.output, found.position, found.positions) == ("scores", "scores", "position", (-1.0, 0.0, 1.0))
    assert found.horizon == 0 and found.future == {} and found.levels == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"kind": "table"}}, r"member m: was trained on a table \(table\); an ensemble answers bars"),
        (
            {"inputs": {"history": described("a", "body", "b", "c", "d", "e", "f"), "future": []}},
            r"member m: its input history wants 6 of 7 columns that are none of the 230 that bars have: a, b, c, d, e and 1 more",
        ),
        (
            {"inputs": {"history": described("body"), "future": described("hour_sin_1", "body")}},
            r"its input future wants 1 of 2 columns that are none of the 11 that the clock tells of the future: body",
        ),
        (
            {"inputs": {"history": described("body"), "static": described("sector")}},
            r"member m: wants static columns \(sector\), which bars have not",
        ),
        (
            {"inputs": {"history": described("body", categories=3), "future": []}},
            r"member m: wants categories \(body\); the columns of bars are numbers",
        ),
    ],
)
def test_what_bars_cannot_feed_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EnsembleError, match=said):
        own_interface("m", metadata(**changes))


def test_a_file_that_no_run_made_is_refused() -> None:
    of_origin = [field.name for field in fields(Origin)]
    with pytest.raises(EnsembleError, match=r"member m: its metadata lacks its origin; export it again with tftq run, or add `foreign`"):
        own_interface("m", metadata(*of_origin))


def test_a_recipe_says_it_of_a_file_of_another_tool() -> None:
    recipe = ForeignRecipe.model_validate(
        {
            "lookback": 3,
            "warmup": 0,
            "horizon": 2,
            "history": {"x": ["close", "body"]},
            "future": {"clock": ["hour_sin_1"]},
            "output": {"kind": "scores", "name": "y", "positions": [0.0, 1.0]},
        }
    )
    found = foreign_interface("other", recipe)
    assert found.history == {"x": ("close", "body")} and found.future == {"clock": ("hour_sin_1",)}
    assert (found.gives, found.positions, found.levels, found.step, found.needs) == ("scores", (0.0, 1.0), (), None, 3)
    with pytest.raises(EnsembleError, match=r"member other: its input x wants 1 of 1 columns .* bars have: price$"):
        foreign_interface("other", recipe.model_copy(update={"history": {"x": ("price",)}}))


def test_outputs_are_read_by_what_they_are() -> None:
    one = Interface(lookback=1, warmup=0, history={}, output="y", gives="position")
    assert one.read(np.array([[0.5]])).position == 0.5
    with pytest.raises(AnswerError, match=r"y \[1, 2\]; allowed: one position"):
        one.read(np.zeros((1, 2)))
    scores = Interface(lookback=1, warmup=0, history={}, output="y", gives="scores", positions=(-1.0, 0.0, 1.0))
    assert scores.read(np.array([[1.0, 3.0, 2.0]])).position == 0.0
    forecast = Interface(lookback=1, warmup=0, history={}, output="y", gives="quantiles", levels=(0.1, 0.5, 0.9))
    answer = forecast.read(np.array([[[-1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]]))
    assert answer.position == 1.0 and answer.quantiles is not None and answer.quantiles.shape == (2, 3)
    assert forecast.read(np.array([[-3.0, -2.0, 3.0]])).position == -1.0  # of the next step alone
    with pytest.raises(AnswerError, match=r"y \[1, 4\]; allowed: \[1, horizon, 3\]"):
        forecast.read(np.zeros((1, 4)))
