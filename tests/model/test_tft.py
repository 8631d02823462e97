import pytest
import torch

from tests.model.small import example, small_model
from tftq.model.tabulate import tabulate

FORMS = ["paper", "folded", "knots"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("static", [True, False])
def test_every_parameter_receives_a_gradient(form: str, static: bool) -> None:
    model = small_model(form, static=static)
    model(*example(model.inputs, batch=64)).square().sum().backward()
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.numel()]
    silent = [name for name, parameter in parameters if parameter.grad is None or not parameter.grad.any()]
    assert silent == []


@pytest.mark.parametrize("form", [*FORMS, "table"])
def test_the_decoder_is_causal(form: str) -> None:
    """A known input of the last step changes that step alone; one of the first changes them all."""
    model = small_model("knots" if form == "table" else form).eval()
    if form == "table":
        model, _ = tabulate(model)
    history, future, static = example(model.inputs)
    before = model(history, future, static)
    for step in range(4):
        changed = future.clone()
        changed[:, step, 0] += 1.5
        moved = (model(history, changed, static) != before).any(dim=-1).any(dim=0)
        assert moved.tolist() == [position >= step for position in range(4)]


def test_quantiles_are_ordered_in_the_targets_unit() -> None:
    model = small_model().eval()
    forecast = model(*example(model.inputs, batch=200))
    assert forecast.shape == (200, 4, 3)
    assert bool((forecast.diff(dim=-1) >= 0).all())
    assert 5 < forecast.mean() < 15  # centred on the target scaling's 10


def test_scaling_by_hand() -> None:
    scaling = small_model().history_scaling  # (x - 0.5) / 2, the third column through asinh, clipped to ±3
    x = torch.tensor([[2.5, 2.5, 2.5, 1.0, 1.0], [100.0, -100.0, 100.0, 2.0, 1.0]])
    x = torch.cat([x[:, :3], x[:, 3:]], dim=1)
    expected_first = [1.0, 2.0, 0.8813736, 0.25, 1.0]  # `state` (second) is a category; `hour` (fourth) a number
    assert scaling(x)[0].tolist() == pytest.approx(expected_first)
    assert scaling(x)[1].tolist() == pytest.approx([3.0, 0.0, 3.0, 0.75, 1.0])


def test_batch_mates_do_not_matter() -> None:
    model = small_model().eval()
    inputs = example(model.inputs, batch=17)
    whole = model(*inputs)
    for size in (8, 1):
        parts = [model(*(x[start : start + size] for x in inputs)) for start in range(0, 17, size)]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-6, atol=1e-5)


def test_dropout_differs_between_rows() -> None:
    """A mask at the knots would be shared by every row; on the output of the selection it is not."""
    model = small_model(static=False)
    selection = model.history_selection.train()
    selection.joint.eval()
    selection.dropout.p = 0.5
    zeros = selection(torch.rand(1, 100, 5)) == 0
    assert not bool((zeros[0] == zeros[0, :1]).all())
