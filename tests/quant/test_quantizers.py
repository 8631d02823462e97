"""Quantizers: what moves a range, when values are rounded, and which gradients pass."""

import itertools

import pytest
import torch

from tftq.errors import QuantizationError
from tftq.quant.fake_quantize import fake_quantize
from tftq.quant.integers import UINT8
from tftq.quant.quantizers import MOVING_AVERAGE, ActivationQuantizer, WeightQuantizer, quantizers

HUNDRED = torch.tensor(100, dtype=torch.int32)


def test_the_gradient_passes_inside_and_is_zero_outside() -> None:
    # A scale of 1/8 and a zero point of 100 cover -12.5 to 19.375; what is less than half a step beyond an end still rounds to it.
    x = torch.tensor([-13.0, -12.56, -12.5, 0.03, 19.375, 19.43, 19.5], requires_grad=True)
    y = fake_quantize(x, torch.tensor(0.125), HUNDRED, UINT8)
    assert y.tolist() == [-12.5, -12.5, -12.5, 0.0, 19.375, 19.375, 19.375]
    y.backward(torch.arange(1.0, 8.0))
    assert x.grad is not None and x.grad.tolist() == [0, 2, 3, 4, 5, 6, 0]


def test_the_gradient_of_a_learned_activation_range_by_hand() -> None:
    """Ends of -12.5 and 19.375, steps of 1/8: one value below, one of -0.24 steps' rounding error, one above, one without error."""
    quantizer = ActivationQuantizer()
    quantizer.cover(-12.5, 19.375)
    quantizer.learn()
    quantizer.observing = quantizer.enabled = True
    x = torch.tensor([[-13.0, 0.03], [19.6, 1.0]], requires_grad=True)
    y = quantizer(x)
    assert y.tolist() == [[-12.5, 0.0], [19.375, 1.0]]
    y.backward(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    assert x.grad is not None and x.grad.tolist() == [[0, 2], [0, 8]]
    assert quantizer.stretch is not None and quantizer.stretch.grad is not None
    width, balance = 2 * -0.24 / 255, (2 * 255) ** -0.5  # two values to a window
    expected = [-12.5 * (1 - width) * balance, 19.375 * (4 + width) * balance]
    assert quantizer.stretch.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_learned_weight_ranges_is_that_of_the_step_size() -> None:
    """Esser et al. 2020, eq. 3, per channel: a value's own error inside, ±127 steps beyond."""
    quantizer = WeightQuantizer(2, axis=0)
    quantizer.observe(torch.tensor([[1.27, 0.0, 0.5], [0.0, -2.54, 0.1]]))
    quantizer.learn()
    quantizer.observing = quantizer.enabled = True
    weight = torch.tensor([[1.4, 0.004, -0.507], [0.02, -3.0, 0.109]], requires_grad=True)
    quantizer(weight).backward(torch.tensor([[1.0, 10.0, 3.0], [1.0, 2.0, 5.0]]))
    of_step = [127 + 10 * -0.4 + 3 * (-51 + 50.7), 2 * -127 + 5 * (5 - 5.45)]
    assert quantizer.stretch is not None and quantizer.stretch.grad is not None
    expected = [step * gradient * (3 * 127) ** -0.5 for step, gradient in zip((0.01, 0.02), of_step, strict=True)]
    assert quantizer.stretch.grad.tolist() == pytest.approx(expected, rel=1e-4)


def test_an_end_beyond_zero_is_zero_and_learns_nothing() -> None:
    quantizer = ActivationQuantizer()
    quantizer.cover(1.0, 2.55)
    quantizer.learn()
    quantizer.observing = quantizer.enabled = True
    quantizer(torch.tensor([[-1.0, 0.5]])).sum().backward()
    assert quantizer.stretch is not None and quantizer.stretch.grad is not None
    assert quantizer.stretch.grad[0] == 0 and quantizer.zero_point == 0


@pytest.mark.parametrize(("observing", "training", "enabled"), list(itertools.product([False, True], repeat=3)))
def test_a_learned_range_has_a_gradient_only_between_rounding_and_freezing(observing: bool, training: bool, enabled: bool) -> None:
    activation, weight = seen(-1.0, 1.55), WeightQuantizer(2, axis=0)
    weight.observe(torch.tensor([[1.27, 0.0], [0.0, 2.54]]))
    plain = seen(-1.0, 1.55)
    for quantizer in (activation, weight):
        quantizer.learn()
        quantizer.observing, quantizer.enabled = observing, enabled
        quantizer.train(training)
        quantizer(torch.tensor([[1.003, -0.123], [0.456, 3.003]], requires_grad=True)).sum().backward()
        assert quantizer.stretch is not None
        assert (quantizer.stretch.grad is not None) == (observing and training and enabled)
    x = torch.linspace(-2, 2, 101)
    assert torch.equal(activation.eval()(x), plain.eval()(x))  # of a range not stretched yet


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_computes_in_fp32_under_autocast(dtype: torch.dtype) -> None:
    x, scale = torch.linspace(-3, 3, 1001), torch.tensor(0.0123)
    expected = fake_quantize(x, scale, HUNDRED, UINT8)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(fake_quantize(x, scale, HUNDRED, UINT8), expected)
        half = fake_quantize(x.to(dtype), scale, HUNDRED, UINT8)
    assert half.dtype == torch.float32
    assert torch.equal(half, fake_quantize(x.to(dtype).float(), scale, HUNDRED, UINT8))


def seen(low: float, high: float) -> ActivationQuantizer:
    """A quantizer whose range is calibrated."""
    quantizer = ActivationQuantizer()
    quantizer.cover(low, high)
    return quantizer


@pytest.mark.parametrize(("observing", "training", "enabled"), list(itertools.product([False, True], repeat=3)))
def test_it_learns_only_when_observing_in_training_and_always_rounds_in_eval(observing: bool, training: bool, enabled: bool) -> None:
    activation, weight = seen(-1.0, 1.55), WeightQuantizer(2, axis=0)
    weight.observe(torch.tensor([[1.27, 0.0], [0.0, 2.54]]))
    for quantizer in (activation, weight):
        quantizer.observing, quantizer.enabled = observing, enabled
        quantizer.train(training)
        before = {name: buffer.clone() for name, buffer in quantizer.state_dict().items()}
        x = torch.tensor([[20.003, -0.123], [0.456, 30.003]])
        y = quantizer(x)
        changed = [name for name, buffer in quantizer.state_dict().items() if not torch.equal(buffer, before[name])]
        assert bool(changed) == (observing and training)
        assert torch.equal(y, x) == (training and not enabled)


def test_the_range_moves_once_an_update_by_hand() -> None:
    assert MOVING_AVERAGE == 0.01
    quantizer = seen(-1.0, 1.0)
    quantizer.observing = True
    for values in ([-3.0, 5.0], [0.0, 7.0]):
        assert quantizer(torch.tensor(values)).tolist() == values
    assert (quantizer.low.item(), quantizer.high.item(), quantizer.scale.item()) == (-1.0, 1.0, pytest.approx(2 / 255))
    for _ in range(2):  # the second time there is nothing new
        quantizer.settle()
        assert (quantizer.low.item(), quantizer.high.item()) == pytest.approx((-1.02, 1.06))  # a hundredth of the way to -3 and 7
        assert quantizer.scale.item() == pytest.approx(2.08 / 255)


def test_a_nan_that_was_observed_is_not_passed_over() -> None:
    quantizer = seen(-1.0, 1.0)
    quantizer.observing = True
    quantizer(torch.tensor([torch.nan, 1.0]))
    quantizer.settle()
    with pytest.raises(QuantizationError, match=r"^gate: its range \[nan, nan\]"):
        quantizer.check("gate")


@pytest.mark.parametrize(("axis", "expected"), [(0, [3.0, 50.0]), (1, [1.0, 50.0, 3.0])])
def test_a_weight_has_a_scale_for_each_channel(axis: int, expected: list[float]) -> None:
    weight = torch.tensor([[1.0, -2.0, 3.0], [0.5, -50.0, 0.0]])
    quantizer = WeightQuantizer(len(expected), axis=axis)
    quantizer.observe(weight)
    assert quantizer.scale.tolist() == pytest.approx([largest / 127 for largest in expected])
    steps = quantizer.along(quantizer.scale).expand_as(weight)
    rounded = quantizer.eval()(weight)
    assert bool(((rounded - weight).abs() <= steps * 0.5001).all())
    assert bool((rounded.abs() == weight.abs()).any(1 - axis).all())  # the largest of every channel is exact, so no channel is coarser


def test_observing_keeps_no_graph() -> None:
    activation, weight = ActivationQuantizer(), WeightQuantizer(3, axis=0)
    x = torch.randn(3, 2, requires_grad=True)
    for quantizer in (activation, weight):
        quantizer.observing = True
        quantizer(x)
        assert not any(buffer.requires_grad for buffer in quantizer.buffers())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_an_error_that_names_the_tensor(bad: float) -> None:
    weight = WeightQuantizer(2, axis=0)
    weight.observe(torch.tensor([[1.0, bad], [1.0, 1.0]]))
    for quantizer in (seen(0.0, bad), weight):
        with pytest.raises(QuantizationError, match=r"^attention\.query: its range"):
            quantizer.check("attention.query")


def test_what_was_never_observed_is_an_error_that_names_the_tensor() -> None:
    for quantizer in (ActivationQuantizer(), WeightQuantizer(2, axis=0)):
        with pytest.raises(QuantizationError, match=r"^attention\.query: .*never observed"):
            quantizer.check("attention.query")


def test_scales_are_buffers_of_fixed_shape_that_follow_the_module() -> None:
    """Loaded before anything was observed, as from a checkpoint."""
    source = seen(-1.0, 1.55)
    fresh = ActivationQuantizer()
    fresh.load_state_dict(source.state_dict())
    x = torch.linspace(-2, 2, 50)
    assert torch.equal(fresh.eval()(x), source.eval()(x))
    assert {buffer.device.type for buffer in fresh.to("meta").buffers()} == {"meta"}


def test_quantizers_are_found_by_name() -> None:
    module = torch.nn.ModuleDict({"a": ActivationQuantizer(), "b": torch.nn.Linear(1, 1), "c": WeightQuantizer(1, axis=0)})
    assert [name for name, _ in quantizers(module)] == ["a", "c"]
