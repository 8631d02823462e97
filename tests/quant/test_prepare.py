"""What `prepare` puts in, where, and what it leaves in floating point; the meta device stands for any that is not the CPU."""

import pytest
import torch
from torch import nn

from tests.model.small import example, small_model
from tests.quant.small import calibrated, small_table
from tftq.errors import QuantizationError
from tftq.model.curves import TableCurves
from tftq.model.tabulate import tabulate
from tftq.quant.layers import FakeQuantizedLinear
from tftq.quant.prepare import kept_layers, prepare, prepared_copy
from tftq.quant.quantizers import learn_ranges
from tftq.quant.schedule import QatSchedule


def test_quantizers_are_on_the_models_device() -> None:
    table, _ = tabulate(small_model())
    prepared = prepare(table.to("meta"), lstm="int8")
    assert {tensor.device.type for tensor in (*prepared.parameters(), *prepared.buffers())} == {"meta"}


def test_preparing_twice_is_refused() -> None:
    prepared = prepare(tabulate(small_model())[0], lstm="int8")
    with pytest.raises(QuantizationError, match="prepared already"):
        prepare(prepared, lstm="int8")


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ((), ()),
        (("heads.linear",), ("heads.linear",)),
        (("heads", "encoder"), ("encoder", "heads.linear")),  # a module stands for what it holds; in the model's order
        (("attention.[kq]*",), ("attention.query", "attention.key")),
        (("*_selection.curves",), ("static_selection.curves", "history_selection.curves", "future_selection.curves")),
        (("*coder",), ("encoder", "decoder")),
    ],
)
def test_patterns_name_layers_and_modules_that_hold_them(patterns: tuple[str, ...], kept: tuple[str, ...]) -> None:
    table = small_table()
    parameters = sorted(map(id, table.parameters()))
    prepared = prepare(table, lstm="int8", keep_float=patterns)
    assert prepared.kept_float == kept
    floats = [name for name, module in prepared.named_modules() if type(module) in (nn.Linear, TableCurves)]
    lstms = [name for name in ("encoder", "decoder") if type(prepared.get_submodule(name)) is nn.LSTM]
    assert {*floats, *lstms} == set(kept)
    assert sorted(map(id, prepared.parameters())) == parameters


def test_what_is_kept_computes_as_the_float_layer_does() -> None:
    table = small_table().eval()
    every = [name for name, module in prepared_copy(table, lstm="fp32").named_modules() if isinstance(module, FakeQuantizedLinear)]
    inputs = example(table.inputs, 20)
    without_linear = calibrated(table, "fp32", keep_float=every)  # its tables are rounded
    expected = table(*inputs)
    assert 0 < (without_linear(*inputs) - expected).abs().max() < (calibrated(table, "fp32")(*inputs) - expected).abs().max()
    one = calibrated(table, "fp32", keep_float=["*.curves", *(name for name in every if name != "heads.linear")])
    seen = []
    for model in (table, one):
        model.heads.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        model(*inputs)
    assert bool((seen[0] == seen[1]).all())  # everything up to the heads is the float model, to the last bit


def test_qat_trains_what_is_kept_without_rounding_it() -> None:
    table = small_table()
    model = calibrated(table, keep_float=["heads", "encoder", "history_selection.curves"])
    learn_ranges(model.train())
    QatSchedule(observe=0, fake_quant=0, freeze=1, total=2).apply(model, 0)
    seen = {}
    heads = model.get_submodule("heads.linear")
    heads.register_forward_hook(lambda layer, arguments, output: seen.update(x=arguments[0], y=output))
    model(*example(table.inputs, 8)).sum().backward()
    assert torch.equal(seen["y"], torch.nn.functional.linear(seen["x"], heads.weight, heads.bias))  # type: ignore[arg-type]
    assert all(parameter.grad is not None for parameter in model.parameters())
    kept = ("heads", "encoder", "history_selection.curves")
    assert not any(name.startswith(kept) for name, parameter in model.named_parameters() if name.endswith("stretch"))
    assert any(name.startswith("decoder") for name, parameter in model.named_parameters() if name.endswith("stretch"))


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["atention.querry"], r"^quant\.keep_float: 'atention\.querry' matches no layer that is quantized; did you mean attention\.query"),
        (["heads", "xyz"], r"^quant\.keep_float: 'xyz' matches no layer .*; allowed: .*attention\.key.*heads\.linear, or the modules that"),
        (["nope*", "Heads"], r"'nope\*' matches no layer.*; 'Heads' matches no layer.*did you mean heads"),
        (["encoder"], r"'encoder' matches no layer that is quantized"),  # its weights are FP32 here anyway
        (["*"], r"^quant\.keep_float: \* match all \d+ layers, so that nothing is quantized; .* set quant\.method to none"),
    ],
)
def test_patterns_that_say_nothing_or_everything_are_refused(patterns: list[str], message: str) -> None:
    table = small_table()
    with pytest.raises(QuantizationError, match=message):
        prepare(table, lstm="fp32", keep_float=patterns)
    assert not any(isinstance(module, FakeQuantizedLinear) for module in table.modules()), "it is left as it was"


def test_what_would_be_kept_is_known_before_anything_is_prepared() -> None:
    table = small_table()
    assert kept_layers(table, lstm="fp32", keep_float=["heads"]) == ("heads.linear",)
    assert table.kept_float == ()
