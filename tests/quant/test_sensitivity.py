"""What each layer loses, against models in which the other layers really are float ones; and the choice of what to keep, by hand."""

import json
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import nn

from tests.quant.small import calibrated, small_batch, small_table
from tftq.errors import QuantizationError
from tftq.evaluate.loss import quantile_loss
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedTable, quantized_layers
from tftq.quant.quantizers import quantizers
from tftq.quant.sensitivity import Sensitivity, in_floating_point, measure_sensitivity

BATCH = small_batch(small_table().inputs, 24, seed=3)


def loss_of(model: TemporalFusionTransformer) -> float:
    with torch.no_grad():
        return quantile_loss(model(*BATCH.inputs), BATCH.target, model.quantiles, model.target_scale).item()


@pytest.fixture(scope="module")
def measured() -> tuple[TemporalFusionTransformer, TemporalFusionTransformer, Sensitivity]:
    """A float table, its calibrated copy, and what was measured of that."""
    table = small_table().eval()
    model = calibrated(table)
    found = measure_sensitivity(model, [BATCH], lambda: loss_of(model), windows=24, every_layer=True, budget=None)
    return table, model, found


def test_a_layer_alone_is_the_model_whose_other_layers_are_float(
    measured: tuple[TemporalFusionTransformer, TemporalFusionTransformer, Sensitivity],
) -> None:
    table, model, found = measured
    names = list(quantized_layers(model))
    assert found.float_loss == pytest.approx(loss_of(table), rel=1e-6) and found.quantized_loss == loss_of(model)
    assert {layer.layer for layer in found.layers} == set(names) and len(names) > 30
    by_name = {layer.layer: layer for layer in found.layers}
    for name in ("heads.linear", "history_selection.curves", "encoder"):
        alone = calibrated(table, keep_float=[other for other in names if other != name])
        assert by_name[name].loss == pytest.approx(loss_of(alone), rel=1e-6)
        assert by_name[name].effect == pytest.approx(by_name[name].loss / found.float_loss - 1)
    effects = [layer.effect for layer in found.layers]
    assert effects == sorted(effects, reverse=True) and effects[0] > 0
    assert (by_name["heads.linear"].weights, by_name["encoder"].weights) == (3 * 16, 2 * 2 * 64 * 16)
    assert (found.budget, found.kept_float, found.loss) == (None, (), found.quantized_loss)


def snr(x: np.ndarray, rounded: np.ndarray) -> float:
    return float(10 * np.log10((x.astype(float) ** 2).sum() / ((x.astype(float) - rounded) ** 2).sum()))


def test_signal_to_noise_written_out(measured: tuple[TemporalFusionTransformer, TemporalFusionTransformer, Sensitivity]) -> None:
    table, model, found = measured
    by_name = {layer.layer: layer for layer in found.layers}
    entered: dict[str, torch.Tensor] = {}
    hook = table.position_wise.gate.register_forward_pre_hook(lambda _, arguments: entered.update(x=arguments[0]))
    table(*BATCH.inputs)
    hook.remove()
    gate = model.get_submodule("position_wise.gate")
    assert isinstance(gate, FakeQuantizedLinear)
    x, weight = entered["x"].detach().numpy(), gate.weight.detach().numpy()
    scale, zero = gate.input_quantizer.scale.numpy(), gate.input_quantizer.zero_point.numpy()
    rounded = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    steps = np.abs(weight).max(1, keepdims=True) / 127
    assert by_name["position_wise.gate"].input_snr_db == pytest.approx(snr(x, rounded), abs=0.01)
    assert by_name["position_wise.gate"].weight_snr_db == pytest.approx(snr(weight, np.rint(weight / steps) * steps), abs=0.01)

    curves = model.get_submodule("static_selection.curves")
    assert isinstance(curves, FakeQuantizedTable) and model.static_scaling is not None and model.static_selection is not None
    with torch.no_grad():
        values = model.static_selection.arrange(model.static_scaling(BATCH.static))
        with in_floating_point(model, quantized_layers(model)):
            share = curves.grid.locate(values, model.static_selection._weights(values, None))[1].numpy()
    largest = share.max(1, keepdims=True)
    assert by_name["static_selection.curves"].input_snr_db == pytest.approx(
        snr(share, np.rint(share / largest * 255) / 255 * largest), abs=0.01
    )
    assert by_name["encoder"].input_snr_db is None  # it computes in floating point
    assert all(layer.weight_snr_db is not None and 25 < layer.weight_snr_db < 60 for layer in found.layers)


def test_sums_do_not_depend_on_the_batches_and_the_model_is_as_before() -> None:
    model = calibrated(small_table())
    switches = [(quantizer.training, quantizer.observing, quantizer.enabled) for _, quantizer in quantizers(model)]
    parts = [small_batch(model.inputs, 8, seed=seed) for seed in (1, 2, 3)]
    whole = type(parts[0])(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    first, second = (
        measure_sensitivity(model, batches, lambda: 1.0, windows=24, every_layer=True, budget=None) for batches in (parts, [whole])
    )
    for apart, together in zip(first.layers, second.layers, strict=True):
        assert (apart.layer, apart.loss, apart.effect) == (together.layer, 1.0, 0.0)
        assert apart.input_snr_db == (None if together.input_snr_db is None else pytest.approx(together.input_snr_db, abs=0.01))
    assert [(quantizer.training, quantizer.observing, quantizer.enabled) for _, quantizer in quantizers(model)] == switches
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_rounding_does_not_change_has_no_noise() -> None:
    model = nn.ModuleDict({"exact": FakeQuantizedLinear(nn.Linear(3, 1)), "zero": FakeQuantizedLinear(nn.Linear(3, 1))}).eval()
    for name, weights in (("exact", [127.0, -3.0, 50.0]), ("zero", [0.0, 0.0, 0.0])):
        layer = model[name]
        assert isinstance(layer, FakeQuantizedLinear)
        layer.weight.data = torch.tensor([weights])
        layer.weight_quantizer.observe(layer.weight)
    model.forward = lambda *_: [model[name].weight_quantizer(model[name].weight) for name in model]  # type: ignore[method-assign]
    found = measure_sensitivity(model, [BATCH], lambda: 1.0, windows=1, every_layer=True, budget=None)
    assert [(layer.layer, layer.weight_snr_db, layer.input_snr_db) for layer in found.layers] == [
        ("exact", None, None),
        ("zero", None, None),
    ]


class Losses:
    """A model of layers a to d whose loss is a function of which of them are quantized."""

    def __init__(self, loss: Callable[[set[str]], float]) -> None:
        self.model = nn.ModuleDict({name: FakeQuantizedLinear(nn.Linear(1, 1)) for name in "abcd"}).eval()
        self.calls = 0
        self.loss_of = loss

    def loss(self) -> float:
        self.calls += 1
        return self.loss_of({name for name, layer in quantized_layers(self.model).items() if layer.weight_quantizer.active})

    def measure(self, budget: float, *, every_layer: bool = False, batches: Iterable = ()) -> Sensitivity:
        return measure_sensitivity(self.model, batches, self.loss, windows=9, every_layer=every_layer, budget=budget)


EFFECTS = {"a": 0.1, "b": 0.5, "c": 0.2, "d": 0.3}


def additive(quantized: set[str]) -> float:
    return 2 * (1 + sum(EFFECTS[name] for name in quantized))


def test_the_layers_with_the_largest_effects_are_kept_until_the_budget_is() -> None:
    found = Losses(additive).measure(0.35)
    assert [layer.layer for layer in found.layers] == ["b", "d", "c", "a"]
    assert [layer.effect for layer in found.layers] == pytest.approx([0.5, 0.3, 0.2, 0.1])
    assert (found.float_loss, found.quantized_loss) == (2, pytest.approx(4.2))
    assert found.kept_float == ("b", "d") and found.above_float(found.loss) == pytest.approx(0.3)


def test_what_proves_not_needed_goes_back_to_integers() -> None:
    """Alone, a and b look worst; together with the others only c matters."""

    def hidden(quantized: set[str]) -> float:
        alone = {"a": 0.5, "b": 0.4, "c": 0.3}
        return 1 + (alone.get(min(quantized), 0.0) if len(quantized) == 1 else 0.6 * ("c" in quantized))

    found = Losses(hidden).measure(0.1)
    assert found.kept_float == ("c",) and found.loss == 1


def test_a_budget_that_is_kept_anyway_costs_two_measurements() -> None:
    losses = Losses(additive)
    found = losses.measure(1.1 + 1e-9)
    assert (found.layers, found.kept_float, found.loss, losses.calls) == ((), (), found.quantized_loss, 2)
    assert len(losses.measure(1.2, every_layer=True).layers) == 4


def test_a_budget_that_cannot_be_kept_is_an_error() -> None:
    message = r"^quant\.loss_budget 0\.05 cannot be kept: with every layer but a in .* still above FP32's by 0\.1 of it"
    with pytest.raises(QuantizationError, match=message):
        Losses(additive).measure(0.05)
    one = Losses(additive)
    for name in "bcd":
        del one.model[name]
    with pytest.raises(QuantizationError, match=message):  # there is nothing else to keep
        one.measure(0.05)


def test_it_survives_json() -> None:
    found = Losses(additive).measure(0.35)
    entries = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert entries["sensitivity"][0]["layer"] == "b" and entries["kept_float"] == ["b", "d"]
    assert Sensitivity.from_dict(entries) == found
