"""A pruned model is the larger one without some variables, what they said replaced by its mean; the law, in every form."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.model.small import example, small_model
from tftq.evaluate.windows import evaluating
from tftq.model.batch import Batch
from tftq.model.curves import FoldedCurves
from tftq.model.folding import fold
from tftq.model.pruning import prune
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer

COLUMNS = ("price", "state", "volume", "hour", "holiday")  # of the history, as the inputs name them
ARRANGED = ("price", "volume", "hour", "state", "holiday")  # the real ones first
CODES = {"state": 3, "holiday": 2}
FORMS = [("knots", False), ("knots", True), ("folded", False), ("folded", True), ("paper", False)]
KEPT = [(("price", "state", "hour"), True), (("volume", "holiday"), False), (("state",), True)]  # and whether there are static columns


def full_model(form: str, shared: bool, kept: tuple[str, ...], *, static: bool = True) -> TemporalFusionTransformer:
    """The small model, its weights nowhere plain, in which these columns get most of the selection weight, and not all the same."""
    model = small_model(form, static=static, shared_gates=shared).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.history_selection.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        more = torch.tensor([4.0 + 0.1 * place if name in kept else 0.0 for place, name in enumerate(ARRANGED)])
        model.history_selection.joint.norm.bias.add_(more)
    return model


def windows(model: TemporalFusionTransformer, count: int = 24) -> Batch:
    history, future, *static = example(model.inputs, count, seed=4)
    return Batch(history, future, static[0] if static else None, torch.zeros(count, model.inputs.horizon))


class Pruned(NamedTuple):
    model: TemporalFusionTransformer
    weights: dict[str, float]

    @property
    def kept(self) -> list[str]:
        return list(self.weights)[: len(self.model.inputs.history)]


def pruned(model: TemporalFusionTransformer, keep: int, whole: Batch, size: int = 7) -> Pruned:
    """Means taken over the windows, some at a time."""
    parts = torch.arange(len(whole.history)).split(size)
    batches = [Batch(*(None if x is None else x[part] for x in whole)) for part in parts]  # type: ignore[arg-type]
    return Pruned(*prune(model, keep, lambda: batches))


def indicators(x: Tensor) -> Tensor:
    """Scaled history columns as the joint network takes them: reals, then one-hot codes."""
    price, state, volume, hour, holiday = x.unbind(-1)
    reals = torch.stack([price, volume, hour], -1)
    return torch.cat([reals, F.one_hot(state.long(), 3).float(), F.one_hot(holiday.long(), 2).float()], -1)


class Reference:
    """The larger model with the dropped variables' weights at zero, what they tell the joint network and the sum at the mean."""

    def __init__(self, full: TemporalFusionTransformer, kept: tuple[str, ...], whole: Batch) -> None:
        self.full, self.selection = full, full.history_selection
        self.keeps = torch.tensor([name in kept for name in ARRANGED])
        self.enters = torch.tensor([name in kept for name in ARRANGED for _ in range(CODES.get(name, 1))])
        context = full.static_context(whole.static)
        x = full.history_scaling(whole.history)
        self.entering = indicators(x).mean((0, 1))
        before = full.selection_weights(whole.history, context)  # [batch, lookback, 5]
        self.share = before[..., [COLUMNS.index(name) for name in kept]].sum(-1).mean()
        self.shift = torch.zeros(())
        self.shift = (full.select_past(whole.history, context) - self.select(whole.history, context)).mean((0, 1))

    def select(self, history: Tensor, context: dict[str, Tensor]) -> Tensor:
        x = self.full.history_scaling(history)
        joint = self.selection.joint
        entering = torch.where(self.enters, indicators(x), self.entering)
        hidden = joint.input(entering)
        if context:
            hidden = hidden + joint.context(context["selection"])[:, None]
        before = joint.skip(entering) + F.glu(joint.gate(F.elu(hidden)))
        logits = torch.full_like(before, -torch.inf)
        gain, bias = joint.norm.weight[self.keeps], joint.norm.bias[self.keeps]
        logits[..., self.keeps] = F.layer_norm(before[..., self.keeps], (int(self.keeps.sum()),), gain, bias, 1e-3)
        weights = logits.softmax(-1)
        arranged = x[..., [0, 2, 3, 1, 4]]
        mixed = self.selection.curves.mix(arranged.flatten(0, 1), weights.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.share * mixed + self.shift

    def forecast(self, batch: Batch) -> Tensor:
        context = self.full.static_context(batch.static)
        return self.full.forecast(self.select(batch.history, context), batch.future, context)


def kept_columns(found: Pruned, history: Tensor) -> Tensor:
    return history[..., found.model.inputs.history_places]


@pytest.mark.parametrize(("kept", "static"), KEPT)
@pytest.mark.parametrize(("form", "shared"), FORMS)
@torch.no_grad()
def test_the_law(form: str, shared: bool, kept: tuple[str, ...], static: bool) -> None:
    model = full_model(form, shared, kept, static=static)
    whole = windows(model)
    found = pruned(model, len(kept), whole)
    assert set(found.kept) == set(kept)
    reference = Reference(fold(model), kept, whole)
    other = windows(model, 5)._replace(history=whole.history[:5].flip(1) * 1.1)  # not those that the means are of
    other.history[..., 1], other.history[..., 4] = whole.history[:5, :, 1], whole.history[:5, :, 4]  # codes
    for batch in (whole, other):
        inputs = batch._replace(history=kept_columns(found, batch.history)).inputs
        torch.testing.assert_close(found.model(*inputs), reference.forecast(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "shared"), FORMS)
def test_columns_keep_their_order_and_the_future_is_whole(form: str, shared: bool) -> None:
    model = full_model(form, shared, ("price", "state", "hour"))
    found = pruned(model, 3, windows(model))
    inputs = found.model.inputs
    assert [column.name for column in inputs.history] == ["price", "state", "hour"] and inputs.history_places == [0, 1, 3]
    assert inputs.future == model.inputs.future and inputs.static == model.inputs.static and inputs.left_out == ("volume", "holiday")
    assert inputs.shapes(2) == {"history": (2, 12, 3), "future": (2, 4, 2), "static": (2, 2)}
    assert found.model.architecture.form == ("knots" if form == "knots" else "folded") and not found.model.training
    assert sum(found.weights.values()) == pytest.approx(1) and set(found.weights) == set(COLUMNS)
    assert list(found.weights.values()) == sorted(found.weights.values(), reverse=True)
    assert set(found.kept) == {"price", "state", "hour"}


@torch.no_grad()
def test_the_mean_of_what_is_selected_stays() -> None:
    model = full_model("knots", False, ("volume", "holiday"))
    whole = windows(model)
    found = pruned(model, 2, whole)
    context = model.static_context(whole.static)
    before = model.select_past(whole.history, context)
    after = found.model.select_past(kept_columns(found, whole.history), context)
    torch.testing.assert_close(after.mean((0, 1)), before.mean((0, 1)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_mean_is_nearer_than_nothing() -> None:
    """Against what slicing alone would leave: weights of the kept variables that sum up to 1, and no shift."""
    model = full_model("knots", False, ())  # all alike, so that much is lost
    whole = windows(model)
    found = pruned(model, 2, whole)
    inputs = whole._replace(history=kept_columns(found, whole.history)).inputs
    expected = model(*whole.inputs)
    mended = (found.model(*inputs) - expected).square().mean()
    curves, share = found.model.history_selection.curves, sum(found.weights[name] for name in found.kept)
    assert isinstance(curves, FoldedCurves)
    old = model.history_selection.curves
    places = [ARRANGED.index(column.name) for column in curves.columns]
    torch.testing.assert_close(curves.norm_weight, share * old.norm_weight[places])
    curves.norm_weight.copy_(old.norm_weight[places])
    curves.norm_bias.copy_(old.norm_bias[places])
    assert mended < 0.5 * (found.model(*inputs) - expected).square().mean()


def test_means_do_not_depend_on_how_windows_are_batched() -> None:
    model = full_model("folded", False, ("volume", "holiday"))
    whole = windows(model)
    one, many = pruned(model, 2, whole, size=1), pruned(model, 2, whole, size=24)
    assert one.weights == {name: pytest.approx(weight, rel=1e-6) for name, weight in many.weights.items()}
    for mine, other in zip(one.model.parameters(), many.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_larger_model_is_left_as_it_was() -> None:
    model = full_model("knots", False, ("price",))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruned(model, 1, windows(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_of_equal_variables_the_first_stay() -> None:
    model = small_model("knots").eval()
    joint = model.history_selection.joint
    with torch.no_grad():
        joint.norm.weight.zero_()
    assert pruned(model, 2, windows(model)).kept == ["price", "state"]


@torch.no_grad()
def test_a_pruned_model_trains_and_becomes_a_table() -> None:
    model = full_model("knots", False, ("volume", "holiday"))
    whole = windows(model)
    found = pruned(model, 2, whole)
    inputs = whole._replace(history=kept_columns(found, whole.history)).inputs
    assert torch.equal(tabulate(found.model)[0](*inputs), found.model(*inputs))
    with torch.enable_grad(), evaluating(found.model):
        found.model.train()(*inputs).square().mean().backward()
    missing = [name for name, parameter in found.model.named_parameters() if parameter.grad is None]
    assert not missing


def test_what_is_constant_goes_first_however_loud() -> None:
    model = full_model("knots", False, ("price", "state"), static=False)
    with torch.no_grad():
        model.history_scaling.low[0] = model.history_scaling.high[0]  # the price, now clipped to one value
    assert pruned(model, 4, windows(model)).kept[0] == "state"
    found = pruned(model, 2, windows(model))
    assert "price" not in found.kept and list(found.weights)[-1] == "price"
    assert found.weights["price"] > found.weights[found.kept[1]]
