"""What every network shares: scalings under names that checkpoints rely on, and what an exported file says of it."""

import pytest
import torch

from tests.model.small import example, small_inputs, small_model
from tftq.export.graph import describe
from tftq.model.forecaster import Forecaster


def test_scalings_keep_the_names_that_checkpoints_know() -> None:
    model = small_model()
    parts = ("history", "future", "static")
    columns = {f"{part}_scaling.{name}" for part in parts for name in ("center", "scale", "tailed", "low", "high")}
    target = {"target_unscaling.center", "target_unscaling.scale"}
    assert {name for name in model.state_dict() if "scaling" in name} == columns | target
    assert not [name for name in small_model(static=False).state_dict() if name.startswith("static")]


def test_a_forecaster_says_what_it_is() -> None:
    model = small_model()
    assert describe(model, "fp32", "points", None).model == model.kind == "tft"
    assert (model.quantiles, model.kept_float) == ((0.1, 0.5, 0.9), ())
    torch.testing.assert_close(model.target_scale, torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_the_base_class_forecasts_nothing() -> None:
    inputs = small_inputs(static=False)
    with pytest.raises(NotImplementedError):
        Forecaster(inputs, *small_model(static=False).scalings, (0.5,))(*example(inputs))
