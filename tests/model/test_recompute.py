"""A block that is computed again: the same numbers, nothing kept, and nothing learned twice."""

import pytest
import torch
from torch import Tensor, nn

from tftq.memory.counter import ByteCounter
from tftq.model.recompute import recompute, recomputing


def test_it_knows_when_it_computes_again() -> None:
    seen = []

    def block(x: Tensor) -> Tensor:
        seen.append((recomputing(), torch.backends.mkldnn.enabled))
        return x.sin().cos()

    x = torch.randn(3, requires_grad=True)
    was_on = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)[0]
    result = recompute(block, x)
    torch.backends.mkldnn.set_flags(_enabled=was_on, _fp32_precision=None)
    result.sum().backward()
    # The second time with the kernels of the first: a CPU computes the LSTM in FP16 without oneDNN only.
    assert seen == [(False, False), (True, False)]
    assert not recomputing() and torch.backends.mkldnn.enabled == was_on
    assert x.grad is not None
    torch.testing.assert_close(x.grad, -x.sin().sin() * x.cos())


def test_without_autograd_it_is_a_call() -> None:
    with torch.no_grad():
        assert recompute(lambda x: x + 1, torch.zeros(1)).item() == 1


@pytest.mark.parametrize("again", [True, False])
def test_only_what_enters_and_leaves_is_kept(again: bool) -> None:
    layers = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x = torch.randn(256, 64)  # 64 KiB, as is every intermediate tensor
    with ByteCounter() as counter:
        result = recompute(layers, x) if again else layers(x)
        kept = counter.live_bytes // 2**16
    assert result.requires_grad
    assert kept == (1 if again else 5)  # each Tanh keeps its result


def test_an_error_while_it_computes_again_leaves_no_trace() -> None:
    calls = []

    def block(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return x.sin()

    result = recompute(block, torch.zeros(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="out of memory"):
        result.backward()
    assert not recomputing()
