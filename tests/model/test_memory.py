"""What a forward pass of the reference model keeps for the backward pass."""

from typing import get_args

import numpy as np
import pytest
from torch import zeros
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.model.small import column_scaling
from tftq.data.scaling import Scaling, TargetScaling
from tftq.memory.labels import LabellingCounter
from tftq.model.tft import Architecture, Form, TemporalFusionTransformer
from tftq.spec.inputs import Column, Inputs

MIB = 2**20
BATCH = 8


def kept_per_window(form: Form) -> float:
    """MiB of tensors that a forward pass leaves for the backward pass, the LSTM's workspace counted, a window."""
    counts = {"static": 5, "observed": 210, "known": 10}
    inputs = Inputs(tuple(Column(f"{role}{i}", role) for role, count in counts.items() for i in range(count)), 60, 10)  # type: ignore[arg-type]
    with FakeTensorMode(), LabellingCounter() as counter:
        scaling = Scaling(column_scaling(inputs.history), column_scaling(inputs.static))
        target = TargetScaling(np.zeros(10, np.float32), np.ones(10, np.float32))
        model = TemporalFusionTransformer(inputs, scaling, target, Architecture(256, 8, 2, 0.1, (0.1, 0.5, 0.9), form, 64))
        windows = [zeros(shape) for shape in inputs.shapes(BATCH).values()]
        before = counter.live_bytes
        forecast = model(*windows)
        kept = counter.live_bytes - before
    assert forecast.requires_grad
    return kept / BATCH / MIB


@pytest.mark.parametrize("form", get_args(Form))
def test_the_reference_model_keeps_less_than_3_mib_a_window(form: Form) -> None:
    """123 as published, 25 asked for; most of what the knots keep is their table, however many windows there are."""
    assert kept_per_window(form) < 3
