"""Calibration: one pass that leaves nothing behind but ranges."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from tests.quant.small import calibrated, part, small_batch, small_table
from tftq.data.columns import Batch
from tftq.errors import QuantizationError
from tftq.memory.counter import ByteCounter
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.calibration import calibrate
from tftq.quant.fake_quantize import ActivationQuantizer, quantizers
from tftq.quant.prepare import prepared_copy


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
        assert not isinstance(quantizer, ActivationQuantizer) or quantizer.averaging


def test_no_batch_is_an_error() -> None:
    with pytest.raises(QuantizationError, match=r"calibration got no batch.*quant.calibration_windows"):
        calibrate(prepared(), [])


def test_a_weight_that_is_not_a_number_is_an_error_that_names_the_tensor() -> None:
    table = small_table()
    with torch.no_grad():
        table.heads.linear.weight[0, 0] = torch.nan
    with pytest.raises(QuantizationError, match=r"^heads\.linear\.weight_quantizer: its range \[nan, nan\]"):
        calibrated(table)


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
        for seed in range(12):
            live.append(counter.live_bytes)
            yield small_batch(model.inputs, 8, seed=seed)

    with ByteCounter() as counter:
        calibrate(model, batches(counter))
    assert len(live) == 12 and max(live[3:]) == min(live[3:])
