"""What bytes are for, by hand: a linear layer of 100 x 100 weights without bias, 40,000 bytes."""

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tftq.memory.counter import ByteCounter
from tftq.memory.labels import LabellingCounter

WEIGHT = 40_000


def test_gradients_and_optimizer_state_come_and_go() -> None:
    model = nn.Linear(100, 100, bias=False)
    with LabellingCounter() as counter, counter.labelling(model):
        counter.track(model.parameters(), "parameters")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(torch.randn(1, 100)).sum().backward()
        assert counter.labelled == {"parameters": WEIGHT, "gradients": WEIGHT, "optimizer": 0, "workspace": 0}
        optimizer.step()
        assert counter.labelled["optimizer"] == 2 * WEIGHT + 4  # two moments and a step counter
        assert counter.labelled_at_peak["gradients"] == WEIGHT
        optimizer.zero_grad(set_to_none=True)
        assert counter.labelled["gradients"] == 0
        counter.reset_peak()
        assert counter.labelled_at_peak == counter.labelled
    model(torch.randn(1, 100)).sum().backward()
    assert counter.labelled["gradients"] == 0, "outside nothing is labelled any more"


def test_the_workspace_of_a_real_lstm_is_told_apart() -> None:
    lstm = nn.LSTM(16, 16, batch_first=True)
    with LabellingCounter() as counter:
        output = lstm(torch.randn(2, 5, 16))[0]
        assert counter.labelled["workspace"] > 5 * 2 * 4 * 16 * 4  # more than the gates alone
        del output
        assert counter.labelled["workspace"] == 0


def test_a_tensor_made_of_tensors_is_labelled_by_its_parts() -> None:
    a, b = torch.zeros(10), torch.zeros(10)
    with LabellingCounter() as counter:
        counter.track([TwoTensor(a, b)], "optimizer")
        assert counter.labelled["optimizer"] == counter.live_bytes == 80


def test_an_allocator_that_rounds_up() -> None:
    with ByteCounter(rounding=512) as counter:
        small, large = torch.zeros(1), torch.zeros(129)
        assert counter.live_bytes == 512 + 1024
        counter.add_bytes(small, 1)
        assert counter.live_bytes == 512 + 512 + 1024
        del large
        small.resize_(200)
        assert counter.live_bytes == 1024 + 512
