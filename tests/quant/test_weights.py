"""A prepared model's weights, rounded, in a float model."""

import pytest
import torch
from torch import nn

from tests.quant.small import calibrated, small_batch, small_table
from tftq.model.curves import TableCurves
from tftq.quant.prepare import LstmStorage, prepared_copy
from tftq.quant.quantizers import quantizers
from tftq.quant.weights import with_rounded_weights


@pytest.mark.parametrize("lstm", ["fp32", "int8", "dynamic"])
def test_every_weight_is_a_multiple_of_its_channels_step(lstm: LstmStorage) -> None:
    table = small_table(dropout=0.0)
    rounded = with_rounded_weights(calibrated(table, lstm))
    before = dict(table.named_parameters())
    assert {name: value.shape for name, value in rounded.named_parameters()} == {name: value.shape for name, value in before.items()}
    assert not list(quantizers(rounded)) and not any(module.training for module in rounded.modules())
    changed = set()
    for path, module in rounded.named_modules():
        for name, value in module.named_parameters(recurse=False):
            old, whole = before[f"{path}.{name}"].detach(), f"{path}.{name}"
            in_table, stays = isinstance(module, TableCurves), lstm == "fp32" and isinstance(module, nn.LSTM)
            if in_table or (isinstance(module, nn.Linear | nn.LSTM) and name.startswith("weight") and not stays):
                step = old.abs().amax(0 if in_table else 1, keepdim=True) / 127
                torch.testing.assert_close(value.detach(), torch.round(old / step) * step, rtol=1e-5, atol=1e-7)
                changed.add(whole)
            else:
                assert torch.equal(value, old), whole
    assert len(changed) > 20


def test_the_prepared_model_stays_as_it_is_and_activations_are_not_rounded() -> None:
    prepared = calibrated(small_table(), "int8")
    windows = small_batch(prepared.inputs, 8)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    with torch.no_grad():
        forecast = with_rounded_weights(prepared)(*windows.inputs)
        for name, quantizer in quantizers(prepared):
            if name.endswith("input_quantizer"):
                quantizer.cover(-1e-3, 1e-3)  # what is rounded by it saturates at once
        assert torch.equal(with_rounded_weights(prepared)(*windows.inputs), forecast)
        for name, value in prepared.state_dict().items():
            assert "input_quantizer" in name or torch.equal(value, before[name])


def test_it_lies_where_the_model_lies() -> None:
    prepared = prepared_copy(small_table().to("meta"), lstm="int8")
    assert {tensor.device.type for tensor in with_rounded_weights(prepared).parameters()} == {"meta"}
