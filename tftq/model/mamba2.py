"""A forecaster of selective-state-space blocks: Mamba-2 (Dao & Gu 2024, "Transformers are SSMs", arXiv 2405.21060)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.data.scaling import Scaling, TargetScaling
from tftq.model.forecaster import Forecaster
from tftq.model.layers import QuantileHeads, RMSNorm, full_precision
from tftq.model.ordered import RowEmbedding
from tftq.model.recompute import recompute
from tftq.spec.inputs import Inputs

# The published code's ranges, in which rates of decay and step sizes begin.
RATES = (1.0, 16.0)
STEPS = (1e-3, 1e-1)
EPSILON = 1e-5  # of the norms, which are computed in FP32


@dataclass(frozen=True)
class Mamba2Architecture:
    """The sizes of a model; the blocks are `expand` times as wide within as between them, in heads of `head_dim`."""

    hidden: int
    layers: int
    state: int
    head_dim: int
    expand: int
    conv: int
    chunk: int
    dropout: float
    quantiles: tuple[float, ...]

    @property
    def inner(self) -> int:
        """Return the width within a block."""
        return self.expand * self.hidden

    @property
    def heads(self) -> int:
        """Return the number of heads of a block, each with a decay of its own."""
        return self.inner // self.head_dim

    @property
    def projected(self) -> tuple[int, int, int]:
        """Return the widths of a block's first projection: the gate, the convolved part (values, b and c), and the step sizes."""
        return self.inner, self.inner + 2 * self.state, self.heads


class Mamba2(Forecaster):
    """The history and the known future as one sequence through residual blocks, each row seeing itself and those before it.

    Args:
        inputs: the columns and the window's shape.
        scaling: of the input columns, fitted on the training part.
        target_scaling: of the target, one scale for each step.
        architecture: sizes.
    """

    kind = "mamba2"

    def __init__(self, inputs: Inputs, scaling: Scaling, target_scaling: TargetScaling, architecture: Mamba2Architecture) -> None:
        super().__init__(inputs, scaling, target_scaling, architecture.quantiles)
        self.architecture = architecture
        hidden = architecture.hidden
        self.history_embedding = RowEmbedding(inputs.history, hidden)
        self.future_embedding = RowEmbedding(inputs.future, hidden)
        self.static_embedding = RowEmbedding(inputs.static, hidden) if inputs.static else None
        self.blocks = nn.ModuleList(Mamba2Block(architecture) for _ in range(architecture.layers))
        self.norm = RMSNorm(hidden, EPSILON)
        self.heads = QuantileHeads(hidden, architecture.quantiles)

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        """Forecast; see `Forecaster.forward`."""
        past = self.history_embedding(self.history_scaling(history))
        ahead = self.future_embedding(self.future_scaling(future))
        x = torch.cat([past, ahead], dim=1).float()  # [batch, lookback + horizon, hidden]
        if self.static_embedding is not None and self.static_scaling is not None:
            assert static is not None
            x = x + self.static_embedding(self.static_scaling(static))[:, None]
        for block in self.blocks:
            x = recompute(block, x)
        return self.target_unscaling(self.heads(self.norm(x[:, -self.inputs.horizon :])))


class Mamba2Block(nn.Module):
    """A residual block (section 7.1, figure 6): one projection to everything, convolution, scan, gated norm, projection back.

    In FP32 except for the projections.

    Args:
        architecture: sizes.
    """

    def __init__(self, architecture: Mamba2Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        hidden, (inner, convolved, heads) = architecture.hidden, architecture.projected
        self.norm = RMSNorm(hidden, EPSILON)
        self.in_projection = nn.Linear(hidden, inner + convolved + heads, bias=False)
        self.convolution = CausalConvolution(convolved, architecture.conv)
        low, high = map(math.log, STEPS)
        step = torch.empty(heads).uniform_(low, high).exp()
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus at these steps
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(*RATES).log())
        self.skip = nn.Parameter(torch.ones(heads))
        self.gated_norm = RMSNorm(inner, EPSILON)
        self.out_projection = nn.Linear(inner, hidden, bias=False)
        with torch.no_grad():  # so that the residual stream begins as wide however many blocks add to it
            self.out_projection.weight /= architecture.layers**0.5
        self.dropout = nn.Dropout(architecture.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [batch, time, hidden]. Returns: the same shape; each row depends on itself and the rows before it."""
        sizes = self.architecture
        gate, mixed, step = self.in_projection(self.norm(x)).float().split(sizes.projected, dim=-1)
        values, enter, leave = self.convolution(mixed).split((sizes.inner, sizes.state, sizes.state), dim=-1)
        values = values.unflatten(-1, (sizes.heads, sizes.head_dim))  # [batch, time, head, head_dim]
        step = F.softplus(step + self.step_bias)  # [batch, time, head]
        with full_precision(x.device):
            y = chunked_scan(values * step[..., None], -step * self.log_rate.exp(), enter, leave, chunk=sizes.chunk)
        y = y + values * self.skip[:, None]
        return x + self.dropout(self.out_projection(self.gated_norm(y.flatten(-2) * F.silu(gate))))


class CausalConvolution(nn.Module):
    """Each channel's own short convolution over time, and SiLU.

    A sum of shifted products: a runtime computes it in a few passes, where a grouped convolution is a loop over the channels.

    Args:
        channels: of the input and the output.
        width: input rows that an output row depends on, its own the last.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(width, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [batch, time, channels]. Returns: the same shape."""
        time, width = x.shape[1], self.weight.shape[0]
        padded = _with_zeros(x, width - 1, axis=1, front=True)
        shifted = (padded[:, place : place + time] * self.weight[place] for place in range(width))
        return F.silu(sum(shifted, start=self.bias))


def chunked_scan(x: Tensor, log_decay: Tensor, enter: Tensor, leave: Tensor, *, chunk: int) -> Tensor:
    """The recurrence S_t = exp(a_t) S_t-1 + x_t b_tᵀ, y_t = S_t c_t, from S = 0, as products of matrices (section 6, listing 1).

    Within a chunk every row is a weighted sum of the rows before it, as in attention; between chunks the states are carried.

    Args:
        x: the input of the states [batch, time, head, head_dim], float32.
        log_decay: a, at most 0 [batch, time, head].
        enter: b, the input weights, common to all heads [batch, time, state].
        leave: c, the output weights [batch, time, state].
        chunk: rows of a chunk; any number, all rows where there are fewer.

    Returns:
        y [batch, time, head, head_dim].
    """
    time, heads, head_dim = x.shape[1:]
    chunk = min(chunk, time)
    if missing := -time % chunk:  # zero rows behind the last one
        x, log_decay, enter, leave = (_with_zeros(part, missing, axis=1) for part in (x, log_decay, enter, leave))
    x, log_decay, enter, leave = (part.unflatten(1, (-1, chunk)) for part in (x, log_decay, enter, leave))

    # Within each chunk
    log_decay = log_decay.transpose(2, 3)  # [batch, chunk, head, row]
    decay = decays(log_decay)  # [batch, chunk, head, row, row]
    weights = (leave @ enter.mT).tril()  # [batch, chunk, row, row]
    y = (weights[:, :, None] * decay) @ x.transpose(2, 3)  # [batch, chunk, head, row, head_dim]
    y = y.transpose(2, 3)

    if x.shape[1] > 1:
        # From chunk to chunk
        until_end = decay[..., -1, :].transpose(2, 3)  # [batch, chunk, row, head]
        added = (x * until_end[..., None]).flatten(-2).mT @ enter  # [batch, chunk, head * head_dim, state]
        added = added.unflatten(2, (heads, head_dim)).transpose(1, 2)  # [batch, head, chunk, head_dim, state]
        carried = decays(log_decay.sum(-1).mT).tril() @ added.flatten(-2)  # [batch, head, chunk, head_dim * state]: after each chunk
        before = _with_zeros(carried[:, :, :-1], 1, axis=2, front=True)  # each chunk
        before = before.unflatten(-1, (head_dim, -1)).transpose(1, 2)  # [batch, chunk, head, head_dim, state]

        # From the states into each row
        since_start = log_decay.cumsum(-1).exp().transpose(2, 3)  # [batch, chunk, row, head]
        read = leave @ before.flatten(2, 3).mT  # [batch, chunk, row, head * head_dim]
        y = y + read.unflatten(-1, (heads, head_dim)) * since_start[..., None]
    return y.flatten(1, 2)[:, :time]


def decays(log_decay: Tensor) -> Tensor:
    """Return the share of an earlier row's input that remains at each row, from the decays between neighbours.

    Each sum is computed separately: a difference of two cumulative sums would lose the digits of short ones to long ones.

    Args: log_decay [..., row]. Returns: [..., row, earlier row]; 1 where the other row is later, which the caller must mask.
    """
    rows = log_decay.shape[-1]
    later = torch.ones(rows, rows, dtype=log_decay.dtype, device=log_decay.device).tril(-1)  # [row, earlier row]
    return (log_decay[..., None] * later).cumsum(-2).exp()


def _with_zeros(x: Tensor, count: int, *, axis: int, front: bool = False) -> Tensor:
    """Zeros along an axis; joined on, since ONNX Runtime's CUDA provider has no kernel for the Pad of the exported opset."""
    zeros = torch.zeros(*x.shape[:axis], count, *x.shape[axis + 1 :], dtype=x.dtype, device=x.device)
    return torch.cat([zeros, x] if front else [x, zeros], dim=axis)
