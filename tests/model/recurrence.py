"""The recurrence of a selective state space, row after row, which the chunked scan must equal on every device."""

import torch
from torch import Tensor


def recurrence(x: Tensor, log_decay: Tensor, enter: Tensor, leave: Tensor) -> Tensor:
    """The arguments and the result of `chunked_scan`."""
    state = torch.zeros(*x[:, 0].shape, enter.shape[-1], dtype=x.dtype, device=x.device)  # [batch, head, head_dim, state]
    rows = []
    for t in range(x.shape[1]):
        state = log_decay[:, t].exp()[..., None, None] * state + torch.einsum("bhp,bn->bhpn", x[:, t], enter[:, t])
        rows.append(torch.einsum("bhpn,bn->bhp", state, leave[:, t]))
    return torch.stack(rows, 1)


def operands(time: int, rate: float, seed: int) -> list[Tensor]:
    """Two windows of three heads, their decays up to exp(-rate) a row."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(2, time, 3, 5, generator=source)
    log_decay = -rate * torch.rand(2, time, 3, generator=source)
    enter, leave = torch.randn(2, 2, time, 4, generator=source).unbind(0)
    return [x, log_decay, enter, leave]
