"""The blocks the network is made of: the gated residual network, gated skip connections and the quantile heads."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NORM_EPSILON = 1e-3  # the LayerNorm epsilon of the published code, under which FP16 stays finite


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Keep products of FP32 operands in FP32 where autocast would cast them to half; do nothing where it is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class GatedResidual(nn.Module):
    """LayerNorm(skip + GLU(W1 ELU(hidden))): a gated residual network without its first linear map and its skip.

    Args:
        hidden: width of the layer after the ELU.
        outputs: width of the output.
        context: width of the context; 0 for none.
        dropout: rate of the dropout before the gate.
        folded: leave out W1, which no non-linearity separates from the gate.
    """

    def __init__(self, hidden: int, outputs: int, *, context: int = 0, dropout: float, folded: bool) -> None:
        super().__init__()
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.intermediate = nn.Identity() if folded else nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Linear(hidden, 2 * outputs)  # the value and the sigmoid of the GLU in one product
        self.norm = nn.LayerNorm(outputs, eps=NORM_EPSILON)

    def finish(self, hidden: Tensor, skip: Tensor, context: Tensor | None) -> Tensor:
        """Args: hidden [..., hidden]; skip [..., outputs]; context [..., context], broadcast over both. Returns: [..., outputs]."""
        if self.context is not None:
            hidden = hidden + self.context(context)
        hidden = self.dropout(self.intermediate(F.elu(hidden)))
        return self.norm(skip + F.glu(self.gate(hidden)))


class GatedResidualNetwork(GatedResidual):
    """LayerNorm(skip(a) + GLU(W1 ELU(W2 a + W3 c))), with W1 merged into the gate where folded (section 4.1, eq. 2-5).

    Args:
        inputs: width of the input.
        hidden: width of the layer after the ELU.
        outputs: width of the output.
        context: width of the context; 0 for none.
        dropout: rate of the dropout before the gate.
        folded: leave out W1, which no non-linearity separates from the gate.
        project_skip: a linear map on the skip connection; needed where inputs and outputs differ.
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, *, context: int = 0, dropout: float, folded: bool, project_skip: bool | None = None
    ) -> None:
        super().__init__(hidden, outputs, context=context, dropout=dropout, folded=folded)
        if project_skip is None:
            project_skip = inputs != outputs
        assert project_skip or inputs == outputs
        self.input = nn.Linear(inputs, hidden)
        self.skip = nn.Linear(inputs, outputs) if project_skip else nn.Identity()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Args: x [..., inputs]; context [..., context], broadcast over x. Returns: [..., outputs]."""
        return self.finish(self.input(x), self.skip(x), context)


class GatedSkip(nn.Module):
    """LayerNorm(skip + GLU(W dropout(x))), which lets the network leave a whole block unused (section 4.5, eq. 17)."""

    def __init__(self, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Linear(hidden, 2 * hidden)
        self.norm = nn.LayerNorm(hidden, eps=NORM_EPSILON)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Args: x and skip [..., hidden]. Returns: [..., hidden]."""
        return self.norm(skip + F.glu(self.gate(self.dropout(x))))


class RMSNorm(nn.Module):
    """x / √(mean of x² + ε) · weight (Zhang & Sennrich 2019, eq. 4), which ONNX Runtime computes in one pass.

    Args:
        width: of the rows.
        epsilon: ε.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., width]. Returns: the same shape."""
        return x / (x.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weight


class QuantileHeads(nn.Module):
    """One linear map to all quantiles that cannot cross: the median, and positive steps away from it.

    Args:
        hidden: width of the input.
        quantiles: strictly increasing levels, 0.5 among them.
    """

    signs: Tensor

    def __init__(self, hidden: int, quantiles: tuple[float, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, len(quantiles))
        self.median = quantiles.index(0.5)
        self.register_buffer("signs", _steps_from(self.median, len(quantiles)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., hidden]. Returns: [..., quantiles], ascending."""
        raw = self.linear(x).float()  # [..., quantiles]
        steps = F.softplus(raw)
        # Rounding keeps the order: each further quantile adds one more non-negative term to the same sum. Not a matrix product: one with
        # a float constant would be one more exception in the integer graph.
        return raw[..., self.median : self.median + 1] + (steps.unsqueeze(-1) * self.signs).sum(dim=-2)


def _steps_from(median: int, count: int) -> Tensor:
    """Return how step j moves quantile i at [j, i]: +1 for steps above the median up to i, -1 below."""
    column = torch.arange(count)
    step = column[:, None]
    above = (step > median) & (step <= column)
    below = (step < median) & (step >= column)
    return above.float() - below.float()
