import pytest

from tests.model.small import small_inputs, small_model
from tftq.model.size import parameter_count
from tftq.model.tft import Architecture
from tftq.spec.inputs import Column, Inputs


@pytest.mark.parametrize(("form", "shared"), [("paper", False), ("folded", False), ("knots", False), ("knots", True)])
@pytest.mark.parametrize("static", [True, False])
def test_the_closed_form_is_the_models_own_count(form: str, shared: bool, static: bool) -> None:
    model = small_model(form, static=static, shared_gates=shared)  # type: ignore[arg-type]
    assert parameter_count(small_inputs(static=static), model.architecture) == sum(p.numel() for p in model.parameters())


def test_the_reference_model() -> None:
    """About 93.7 million as published and 35.5 million folded by an independent prototype of the same sizes."""
    roles = {"static": 5, "observed": 210, "known": 10}
    columns = tuple(Column(f"{role}{i}", role) for role, count in roles.items() for i in range(count))  # type: ignore[arg-type]
    inputs = Inputs(columns, 60, 10)
    sizes = {form: parameter_count(inputs, Architecture(256, 8, 2, 0.1, (0.1, 0.5, 0.9), form, 64)) for form in ("paper", "folded")}  # type: ignore[arg-type]
    assert sizes["paper"] == pytest.approx(93.7e6, rel=0.02)
    assert sizes["folded"] == pytest.approx(35.5e6, rel=0.02)
