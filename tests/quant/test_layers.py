"""The layers of a prepared model against integer arithmetic written out in numpy."""

from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.model.small import example, small_model
from tests.quant.small import calibrated, small_batch, small_table
from tftq.errors import QuantizationError
from tftq.evaluate.precision import Precision
from tftq.model.curves import TableCurves
from tftq.model.grid import KnotGrid
from tftq.model.tft import Form
from tftq.quant.calibration import calibrating
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable, check_ranges
from tftq.quant.prepare import prepare, prepared_copy, swap_modules
from tftq.quant.quantizers import quantizers

Layer = TypeVar("Layer", bound=nn.Module)


def observed(layer: Layer, *inputs: Tensor | None) -> Layer:
    """The layer after it has seen these inputs, in eval mode."""
    with calibrating(layer):
        layer(*inputs)
    return layer.eval()


def linear_7_to_5(*, bias: bool = True) -> nn.Linear:
    """Output channels of very different sizes."""
    torch.manual_seed(3)
    linear = nn.Linear(7, 5, bias=bias)
    with torch.no_grad():
        linear.weight *= 10.0 ** torch.arange(-2, 3)[:, None]
    return linear


def integers(x: np.ndarray, scale: np.ndarray | np.floating | float, zero_point: int, low: int, high: int) -> np.ndarray:
    return np.clip(np.rint(x / scale).astype(np.int64) + zero_point, low, high).astype(np.int32)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_the_integer_product_written_out(bias: bool) -> None:
    linear = linear_7_to_5(bias=bias)
    x = torch.randn(11, 7) * 2 + 1
    layer = observed(FakeQuantizedLinear(linear), x)

    array, weight = x.numpy(), linear.weight.detach().numpy()
    low, high = min(array.min(), 0), max(array.max(), 0)
    input_scale = np.float32((high - low) / 255)
    zero_point = int(-np.rint(low / input_scale))
    weight_scale = (np.abs(weight).max(1) / 127).astype(np.float32)  # [5]: each output channel's own
    product = integers(array, input_scale, zero_point, 0, 255) - zero_point
    product = product @ integers(weight, weight_scale[:, None], 0, -127, 127).T  # int32 [11, 5]
    if bias:
        product += np.rint(linear.bias.detach().numpy() / (input_scale * weight_scale)).astype(np.int32)
    expected = product * (input_scale * weight_scale)

    # The layer sums seven products and a bias of float32: eight terms, which may cancel, each rounded by eps / 2 up to eight times.
    magnitude = np.abs(array) @ np.abs(weight).T + (np.abs(linear.bias.detach().numpy()) if bias else 0)
    assert product.dtype == np.int32
    assert (np.abs(layer(x).detach().numpy() - expected) <= 4 * np.finfo(np.float32).eps * magnitude).all()
    rounding = np.abs(expected - linear(x).detach().numpy()).max(0)
    assert (rounding > 0).all(), "as good as the float layer: nothing was rounded"
    assert (rounding < 0.05 * np.abs(expected).max(0)).all()


def test_per_channel_is_per_output_of_a_linear_layer() -> None:
    linear = linear_7_to_5()
    layer = observed(FakeQuantizedLinear(linear), torch.randn(4, 7))
    assert layer.weight_quantizer.scale.shape == (5,)
    torch.testing.assert_close(layer.weight_quantizer.scale, linear.weight.abs().amax(1) / 127)


def test_a_bias_beyond_int32_is_an_error_that_names_the_layer() -> None:
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        linear.bias.fill_(1e6)
        linear.weight.fill_(1e-9)  # a scale at its floor
    model = nn.ModuleDict({"gate": observed(FakeQuantizedLinear(linear), torch.zeros(1, 3))})
    with pytest.raises(QuantizationError, match=r"^gate: its bias is more than 2\^31 steps"):
        check_ranges(model)
    with torch.no_grad():
        linear.bias.fill_(1e-3)
    check_ranges(model)


def table_curves() -> TableCurves:
    """Two real variables of five and four knots, and a category of three codes."""
    torch.manual_seed(4)
    grid = KnotGrid(torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([1.0, 3.0, 2.0]), [5, 4, 3])
    return TableCurves(grid, torch.randn(12, 6) * 10.0 ** torch.arange(-2, 4))


def hat_rows(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """w ⊗ hat(x), by numpy's interpolation between the rows of a unit matrix [rows, table rows]."""
    knots = [np.linspace(-1, 1, 5), np.linspace(0, 3, 4), np.arange(3.0)]
    blocks = [
        weights[:, [v]] * np.stack([np.interp(x[:, v], places, unit) for unit in np.eye(len(places))], axis=1)
        for v, places in enumerate(knots)
    ]
    return np.concatenate(blocks, axis=1)


def rows_and_weights() -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    x = torch.stack([torch.randn(40), torch.rand(40) * 4 - 0.5, torch.randint(3, (40,)).float()], dim=1)
    return x, torch.softmax(2 * torch.randn(40, 3), dim=1)


def test_table_is_the_dense_integer_product_written_out() -> None:
    curves = table_curves()
    x, weights = rows_and_weights()
    table = FakeQuantizedTable(curves)
    table.weight_quantizer.observe(curves.values)

    values = curves.values.detach().numpy()
    scale = (np.abs(values).max(0) / 127).astype(np.float32)  # [6]: each output channel's own
    dense = hat_rows(x.numpy().astype(float), weights.numpy().astype(float))
    largest = dense.max(1, keepdims=True)
    shares = integers(dense / largest, 1 / 255, 0, 0, 255)
    product = shares @ integers(values, scale, 0, -127, 127)  # int32 [rows, 6]
    expected = product * scale / 255 * largest

    assert product.dtype == np.int32 and (shares.max(1) == 255).all()
    computed = table.eval().mix(x, weights).detach().numpy()
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(0).min())
    exact = dense @ values
    assert (np.abs(expected - exact).max(0) < 0.02 * np.abs(exact).max(0)).all()


def test_per_channel_is_per_output_of_a_table() -> None:
    curves = table_curves()
    table = FakeQuantizedTable(curves)
    table.weight_quantizer.observe(curves.values)
    torch.testing.assert_close(table.weight_quantizer.scale, curves.values.abs().amax(0) / 127)


def test_the_gradient_of_a_table_passes_through_the_division_by_the_largest_share() -> None:
    """To the weights and the values as if nothing were rounded, but for the rounded operands themselves."""
    curves = table_curves()
    x, weights = rows_and_weights()
    float_weights, weights = weights.clone().requires_grad_(), weights.requires_grad_()
    curves.mix(x, float_weights).sum().backward()
    float_gradient, curves.values.grad = curves.values.grad, None

    table = FakeQuantizedTable(curves)
    table.weight_quantizer.observe(curves.values)
    table.eval().mix(x, weights).sum().backward()
    assert float_gradient is not None and curves.values.grad is not None
    assert float_weights.grad is not None and weights.grad is not None
    torch.testing.assert_close(curves.values.grad, float_gradient, rtol=0.02, atol=0.02)
    step = curves.values.detach().abs().max().item() / 127
    torch.testing.assert_close(weights.grad, float_weights.grad, rtol=0.01, atol=6 * step)


def lstm_pair() -> tuple[nn.LSTM, FakeQuantizedLstm]:
    torch.manual_seed(6)
    lstm = nn.LSTM(5, 5, 2, batch_first=True, dropout=0.3)
    return lstm, FakeQuantizedLstm(lstm)


@pytest.mark.parametrize("given", [True, False])
def test_lstm_with_nothing_rounded_is_torchs_bit_for_bit(given: bool) -> None:
    lstm, quantized = lstm_pair()
    x = torch.randn(3, 7, 5)
    state = (torch.randn(2, 3, 5), torch.randn(2, 3, 5)) if given else None
    torch.manual_seed(0)
    expected, (hidden, cell) = lstm(x, state)
    torch.manual_seed(0)
    output, (other_hidden, other_cell) = quantized(x, state)
    assert torch.equal(output, expected) and torch.equal(other_hidden, hidden) and torch.equal(other_cell, cell)


def test_lstm_rounds_each_weight_per_gate_output_and_nothing_else() -> None:
    lstm, quantized = lstm_pair()
    x = torch.randn(3, 7, 5)
    observed(quantized, x, None)
    expected = nn.LSTM(5, 5, 2, batch_first=True).eval()
    for name, parameter in lstm.named_parameters():
        weight = parameter.detach().numpy()
        if name.startswith("weight"):
            scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
            weight = np.clip(np.rint(weight / scale), -127, 127) * scale
        getattr(expected, name).data = torch.from_numpy(weight.astype(np.float32))
    torch.testing.assert_close(quantized(x, None)[0], expected(x)[0], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(quantized(x, None)[0], lstm(x)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("lstm", "swapped"), [("fp32", 0), ("int8", 2)])
def test_prepare_covers_every_product_and_keeps_every_parameter(lstm: str, swapped: int) -> None:
    table = small_table().train()
    table.get_submodule("static_selection").eval()
    parameters = {name: id(parameter) for name, parameter in table.named_parameters()}
    modes = {name: module.training for name, module in table.named_modules()}
    linears = sum(type(module) is nn.Linear for module in table.modules())

    assert prepare(table, lstm=lstm) is table  # type: ignore[arg-type]
    kinds = [type(module) for module in table.modules()]
    assert nn.Linear not in kinds and TableCurves not in kinds
    assert (kinds.count(FakeQuantizedLinear), kinds.count(FakeQuantizedTable), kinds.count(FakeQuantizedLstm)) == (linears, 3, swapped)
    assert sorted(map(id, table.parameters())) == sorted(parameters.values())
    assert all(module.training == modes[name] for name, module in table.named_modules() if name in modes)


def test_a_prepared_copy_leaves_the_model_alone() -> None:
    table = small_table()
    before = {name: value.clone() for name, value in table.state_dict().items()}
    inputs = example(table.inputs)
    forecast = table(*inputs)
    prepared = calibrated(table)
    assert not any(isinstance(module, FakeQuantizedLinear) for module in table.modules())
    assert all(torch.equal(value, before[name]) for name, value in table.state_dict().items())
    assert torch.equal(table(*inputs), forecast) and not torch.equal(prepared(*inputs), forecast)


@pytest.mark.parametrize("form", ["knots", "folded", "paper"])
def test_only_the_table_form_is_prepared(form: Form) -> None:
    with pytest.raises(QuantizationError, match=r"prepare\(tabulate\(model\)\[0\]"):
        prepared_copy(small_model(form), lstm="fp32")


def test_only_modules_of_exactly_the_type_are_swapped() -> None:
    """A replacement that is a subclass must not be replaced again."""
    model = nn.Sequential(nn.Linear(1, 1), nn.modules.linear.NonDynamicallyQuantizableLinear(1, 1))
    swap_modules(model, {nn.Linear: lambda _: nn.Identity()})
    assert [type(module) for module in model] == [nn.Identity, nn.modules.linear.NonDynamicallyQuantizableLinear]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_quantized_model_runs_under_autocast_with_its_products_in_fp32(name: str) -> None:
    model = calibrated(small_table(dropout=0.0)).train()
    layer = model.position_wise.gate
    assert isinstance(layer, FakeQuantizedLinear)
    for _, quantizer in quantizers(model):
        quantizer.enabled = quantizer.observing = True
    x = torch.randn(4, 16)
    layer.input_quantizer.observing = False
    expected = layer(x)
    with Precision(name, torch.device("cpu")).autocast():  # type: ignore[arg-type]
        assert torch.equal(layer(x), expected)
        batch = small_batch(model.inputs, 8)
        forecast = model(*batch.inputs)
    assert forecast.dtype == torch.float32
    (forecast.sum() * 0.01).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert {value.dtype for value in model.state_dict().values() if value.is_floating_point()} == {torch.float32}


def test_ranges_learn_once_from_what_the_backward_pass_computes_again() -> None:
    model = calibrated(small_table(dropout=0.0)).train()
    for _, quantizer in quantizers(model):
        quantizer.enabled = quantizer.observing = True
    forecast = model(*small_batch(model.inputs, 8).inputs)
    after_forward = {name: value.clone() for name, value in model.named_buffers()}
    forecast.sum().backward()
    for name, value in model.named_buffers():
        assert torch.equal(value, after_forward[name]), name
