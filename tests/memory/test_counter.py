"""Bytes counted by hand, on real and on fake tensors."""

import copy
import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from tftq.memory.counter import ByteCounter

PARAMETERS = 4 * (100 * 50 + 50 + 50 * 10 + 10)


@pytest.fixture(params=["real", "fake"])
def counter(request: pytest.FixtureRequest) -> Iterator[ByteCounter]:
    with ExitStack() as stack:
        if request.param == "fake":
            stack.enter_context(FakeTensorMode())
        yield stack.enter_context(ByteCounter())


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))


def test_an_mlp_counted_by_hand(counter: ByteCounter) -> None:
    model = mlp()
    assert counter.live_bytes == PARAMETERS
    x = torch.randn(8, 100)
    assert counter.live_bytes == PARAMETERS + 3200
    loss = model(x).square().mean()
    saved = 8 * 50 * 4 + 8 * 10 * 4  # the ReLU's output and the forecast; what enters the ReLU and the mean is not needed again
    assert counter.live_bytes == PARAMETERS + 3200 + saved + 4
    loss.backward()
    assert counter.live_bytes == 2 * PARAMETERS + 3200 + 4
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.step()
    assert counter.live_bytes == 4 * PARAMETERS + 3200 + 4 + 4 * 4  # a step counter for each of four parameters
    optimizer.zero_grad()
    del x, loss
    assert counter.live_bytes == 3 * PARAMETERS + 4 * 4
    before = counter.peak_bytes
    counter.reset_peak()
    assert counter.peak_bytes == counter.live_bytes < before
    del model, optimizer
    gc.collect()
    assert counter.live_bytes == 0


def test_retained_losses_hold_their_graphs_and_detached_ones_do_not(counter: ByteCounter) -> None:
    model, x = mlp(), torch.randn(8, 100)
    start = counter.live_bytes
    retained = [model(x).square().mean() for _ in range(10)]
    assert counter.live_bytes - start == 10 * (1600 + 320 + 4)
    del retained
    assert counter.live_bytes == start
    detached = [model(x).square().mean().detach() for _ in range(10)]
    assert counter.live_bytes - start == 10 * 4
    assert len(detached) == 10


def test_views_and_in_place_operators_share_a_storage(counter: ByteCounter) -> None:
    x = torch.empty(100)
    view = x.view(10, 10)[2:].t()
    x.add_(1).clamp_(0, 1)
    parts = x.split(30)
    assert counter.live_bytes == 400
    del x, view
    assert counter.live_bytes == 400
    del parts
    assert counter.live_bytes == 0


def test_checkpointing_saves_its_input_alone(counter: ByteCounter) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    x = torch.randn(16, 64)
    start = counter.live_bytes
    plain = model(x)
    assert counter.live_bytes - start == 4 * 16 * (256 + 64)
    del plain
    saving = checkpoint(model, x, use_reentrant=False)
    assert counter.live_bytes - start == 4 * 16 * 64
    saving.sum().backward()
    del saving
    assert counter.live_bytes - start == 4 * (64 * 256 + 256 + 256 * 64 + 64)


def test_storages_that_no_operator_makes() -> None:
    with ByteCounter() as counter:
        x = torch.tensor([1.0, 2.0])
        assert counter.live_bytes == 8
        twin = copy.deepcopy(x)
        assert counter.live_bytes == 16
        twin.resize_(100)
        assert counter.live_bytes == counter.peak_bytes == 408
        x.set_(twin)
        assert counter.live_bytes == 400
        del x, twin
        assert counter.live_bytes == 0


def test_a_tensor_made_of_tensors_counts_their_bytes() -> None:
    a, b = torch.zeros(10), torch.zeros(10)
    counter = ByteCounter()
    counter.track([TwoTensor(a, b)])
    assert counter.live_bytes == 80


def test_what_existed_before_counts_when_it_is_tracked() -> None:
    x = torch.zeros(100)
    counter = ByteCounter()
    with counter:
        x.view(10, 10).add_(1)
        assert counter.live_bytes == 0
        counter.track([x, x.view(10, 10), x])
        assert counter.live_bytes == counter.peak_bytes == 400
    del x
    assert counter.live_bytes == 0


def test_further_bytes_live_as_long_as_their_tensor() -> None:
    with ByteCounter() as counter:
        x = torch.zeros(10)
        counter.add_bytes(x, 1000)
        assert counter.live_bytes == counter.peak_bytes == 1040
        del x
        assert counter.live_bytes == 0


def test_only_the_device_asked_for() -> None:
    with ByteCounter("cuda") as elsewhere:
        x = torch.zeros(100)
        assert elsewhere.live_bytes == 0
    with ByteCounter("cpu") as here:
        y = torch.zeros(100)
        assert here.live_bytes == 400
    with ByteCounter() as everywhere:
        z = torch.zeros(100, device="meta")
        assert everywhere.live_bytes == 0
    assert len([x, y, z]) == 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["new", "view", "clone", "drop"]), st.integers(0, 9)), max_size=40))
def test_live_bytes_are_the_storages_that_are_held(steps: list[tuple[int, str, int]]) -> None:
    held: list[Tensor] = []
    highest = 0
    with ByteCounter() as counter:
        for size, action, which in steps:
            if action == "new" or not held:
                held.append(torch.empty(size))
            elif action == "drop":
                held.pop(which % len(held))
            else:
                x = held[which % len(held)]
                held.append(x[:] if action == "view" else x.clone())
                del x
            storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in held}
            highest = max(highest, sum(storages.values()))
            assert counter.live_bytes == sum(storages.values())
        assert counter.peak_bytes == highest
