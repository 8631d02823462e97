"""Calibration: one pass that leaves nothing behind but ranges."""

from collections.abc import Iterable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from tests.quant.small import calibrated, part, small_batch, small_table
from tftq.errors import QuantizationError
from tftq.memory.counter import ByteCounter
from tftq.model.batch import Batch
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.calibration import calibrate, calibrating
from tftq.quant.layers import FakeQuantizedLinear, check_ranges
from tftq.quant.observers import Method
from tftq.quant.prepare import prepared_copy
from tftq.quant.quantizers import ActivationQuantizer, quantizers


def ranges(model: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{key}": value.clone() for name, quantizer in quantizers(model) for key, value in quantizer.state_dict().items()}


def prepared() -> TemporalFusionTransformer:
    return prepared_copy(small_table(), lstm="int8")


def test_the_ranges_are_those_of_the_float_model() -> None:
    table = small_table()
    batch = small_batch(table.inputs, 64, seed=5)
    entered: list[Tensor] = []
    table.position_wise.gate.register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    table(*batch.inputs)
    quantizer = calibrated(table).get_submodule("position_wise.gate.input_quantizer")
    assert isinstance(quantizer, ActivationQuantizer)
    assert (quantizer.low.item(), quantizer.high.item()) == pytest.approx((entered[0].min().item(), entered[0].max().item()), rel=1e-6)


def test_the_ranges_do_not_depend_on_the_batches() -> None:
    model = prepared()
    whole = small_batch(model.inputs, 50, seed=5)
    calibrate(model, [whole])
    at_once = ranges(model)
    for size in (1, 7, 32):
        calibrate(model, [part(whole, slice(start, start + size)) for start in range(0, 50, size)])
        torch.testing.assert_close(ranges(model), at_once, rtol=1e-5, atol=1e-6)
    calibrate(model, [part(whole, slice(0, 5))])
    assert not all(torch.equal(value, at_once[name]) for name, value in ranges(model).items())


METHODS: tuple[Method, ...] = get_args(Method)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_depends_on_the_batches(method: Method) -> None:
    """To the rounding of the float model, whose products differ in their last bits: a value may fall into the next bin."""
    model = prepared()
    whole = small_batch(model.inputs, 24, seed=5)
    calibrate(model, [whole], method, percentile=99)
    at_once = ranges(model)
    calibrate(model, [part(whole, slice(start, start + 9)) for start in range(0, 24, 9)], method, percentile=99)
    torch.testing.assert_close(ranges(model), at_once, rtol=2e-3, atol=2e-3)


def test_each_method_gives_a_range_of_its_own_within_the_extremes() -> None:
    model = prepared()
    batch = small_batch(model.inputs, 40, seed=5)
    found: dict[str, dict[str, Tensor]] = {}
    for method in METHODS:
        calibrate(model, [batch], method, percentile=99)
        found[method] = {name: value for name, value in ranges(model).items() if name.endswith((".low", ".high"))}
        for name, value in found[method].items():
            assert value.abs() <= found["minmax"][name].abs() or method == "moving_average", (method, name)
    drawn = torch.stack([torch.stack(list(values.values())) for values in found.values()])  # [methods, ends]
    assert all(bool((drawn[here] != drawn[there]).any()) for here in range(len(METHODS)) for there in range(here))


def test_calibrating_again_forgets_what_was_seen_before() -> None:
    model = prepared()
    batch = small_batch(model.inputs, 20, seed=5)
    calibrate(model, [batch])
    once = ranges(model)
    calibrate(model, [small_batch(model.inputs, 20, seed=6, times=10.0)])
    assert not torch.equal(ranges(model)["static_selection.joint.input.input_quantizer.high"], torch.zeros(()))
    calibrate(model, [batch])
    assert all(torch.equal(value, once[name]) for name, value in ranges(model).items())


def test_dropout_is_off_and_modes_and_switches_are_as_before() -> None:
    model = prepared()
    batch = small_batch(model.inputs, 20, seed=5)
    calibrate(model, [batch])
    evaluated = ranges(model)

    model.train()
    model.encoder.eval()  # a part that someone froze
    modes = {name: module.training for name, module in model.named_modules()}
    calibrate(model, [batch])
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, evaluated[name]) for name, value in ranges(model).items())
    for _, quantizer in quantizers(model):
        assert not quantizer.observing and not quantizer.enabled


def test_no_batch_is_an_error() -> None:
    with pytest.raises(QuantizationError, match=r"calibration got no batch.*quant.calibration_windows"):
        calibrate(prepared(), [])


def test_a_weight_that_is_not_a_number_is_an_error_that_names_the_tensor() -> None:
    table = small_table()
    with torch.no_grad():
        table.heads.linear.weight[0, 0] = torch.nan
    with pytest.raises(QuantizationError, match=r"^heads\.linear\.weight_quantizer: its range \[nan, nan\]"):
        calibrated(table)


def test_what_is_not_finite_inside_is_counted_and_named_where_it_first_appears() -> None:
    """One unit of the layer's 16 is NaN at each step of the horizon, in each window; two layers come after it."""
    model = prepared()
    batch = small_batch(model.inputs, 6, seed=5)
    with torch.no_grad():
        model.position_wise.input.bias[3] = torch.nan
    entered = 2 * 6 * model.inputs.horizon
    text = (
        rf"calibration: {entered} NaN and 0 Inf among the {16 * entered} values that entered position_wise\.gate\.input_quantizer, as in 2 "
    )
    with pytest.raises(QuantizationError, match=text):
        calibrate(model, [batch, batch])
    assert not any(module.training for module in model.modules()) and not any(module._forward_pre_hooks for module in model.modules())


def test_infinities_are_counted_beside_nan() -> None:
    layer = FakeQuantizedLinear(nn.Linear(3, 2))
    values = torch.tensor([[1.0, torch.inf, torch.nan], [-torch.inf, 0.0, torch.inf]])
    with (
        pytest.raises(QuantizationError, match=r"calibration: 1 NaN and 3 Inf among the 9 values that entered input_quantizer; it"),
        calibrating(layer),
    ):
        layer(torch.ones(1, 3))
        layer(values)


def test_a_tensor_that_is_never_reached_is_refused_by_name() -> None:
    model = nn.ModuleDict({"used": FakeQuantizedLinear(nn.Linear(3, 2)), "unused": FakeQuantizedLinear(nn.Linear(3, 2))})
    with calibrating(model):
        model["used"](torch.ones(1, 3))
    with pytest.raises(QuantizationError, match=r"^unused\.input_quantizer: .*never observed"):
        check_ranges(model)


@pytest.mark.parametrize("name", ["history", "future", "static"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_input_that_is_not_finite_is_an_error_that_names_it(name: str, bad: float) -> None:
    model = prepared()
    batch = small_batch(model.inputs, 4)
    getattr(batch, name)[2, ..., -1] = bad
    with pytest.raises(QuantizationError, match=rf"calibration: {name} of batch 1 is not finite"):
        calibrate(model, [small_batch(model.inputs, 4), batch])


def test_memory_does_not_grow_with_the_batches() -> None:
    """Neither a range nor an activation of an earlier batch is kept."""
    model = prepared()
    live: list[int] = []

    def batches(counter: ByteCounter) -> Iterable[Batch]:
        for seed in range(6):
            live.append(counter.live_bytes)
            yield small_batch(model.inputs, 8, seed=seed)

    with ByteCounter() as counter:
        calibrate(model, batches(counter), "percentile")
    assert len(live) == 6 and max(live[3:]) == min(live[3:])


@pytest.mark.parametrize("method", METHODS)
def test_memory_is_flat_over_a_thousand_batches(method: Method) -> None:
    layer = FakeQuantizedLinear(nn.Linear(32, 4))
    live: list[int] = []
    with ByteCounter() as counter, torch.no_grad(), calibrating(layer, method):
        for number in range(1000):
            layer(torch.randn(16, 32) * (1 + number))
            if number % 100 == 99:
                live.append(counter.live_bytes)
    assert min(live) == max(live), live
