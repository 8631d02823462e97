"""The workspace of an LSTM in closed form is what oneDNN says it takes."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tftq.memory.lstm import lstm_workspace_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("steps", "batch", "hidden"),
    [(60, 32, 64), (10, 8, 256), (60, 1, 64), (7, 5, 33), (48, 3, 32), (11, 2, 512), (1, 1, 1), (9, 4, 127), (10, 32, 256)],
)
def test_it_is_what_the_kernel_returns(steps: int, batch: int, hidden: int, dtype: torch.dtype) -> None:
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mkldnn_rnn_layer.default:
                sizes.append(result[3].untyped_storage().nbytes())
            return result

    with Watch(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        nn.LSTM(hidden, hidden, batch_first=True)(torch.randn(batch, steps, hidden))
    assert sizes == [lstm_workspace_bytes(steps, batch, hidden, dtype)]
