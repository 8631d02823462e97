"""Interpretable multi-head attention (section 4.4): heads that share their values, so that one matrix shows where the model looks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.model.layers import full_precision


class InterpretableAttention(nn.Module):
    """Attention of the horizon over the whole window, the heads' weights averaged before the shared values (eq. 13-16).

    Args:
        hidden: width of the input and output; a multiple of heads.
        heads: number of heads.
        dropout: rate of the dropout on the attention weights.
    """

    def __init__(self, hidden: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        assert hidden % heads == 0
        self.heads = heads
        self.width = hidden // heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, self.width, bias=False)
        self.output = nn.Linear(self.width, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        """Args: x [batch, time, hidden], whose last `horizon` steps are the queries. Returns: [batch, horizon, hidden]."""
        weights, value = self.dropout(self.weights(x, horizon)), self.value(x).float()
        with full_precision(x.device):
            seen = weights @ value  # [batch, horizon, width]
        return self.output(seen)

    def weights(self, x: Tensor, horizon: int) -> Tensor:
        """Compute where each step of the horizon looks, averaged over the heads [batch, horizon, time], in FP32."""
        query = self.query(x[:, -horizon:]).unflatten(-1, (self.heads, self.width)).transpose(1, 2)  # [batch, head, horizon, width]
        key = self.key(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)  # [batch, head, time, width]
        with full_precision(x.device):
            scores = query.float() @ key.float().mT / self.width**0.5  # [batch, head, horizon, time]
        scores = scores.masked_fill(self.hidden_steps(horizon, x.shape[1], x.device), torch.finfo(scores.dtype).min)
        return F.softmax(scores, dim=-1).mean(dim=1)

    @staticmethod
    def hidden_steps(horizon: int, time: int, device: torch.device) -> Tensor:
        """Mark what a step of the horizon must not attend to, steps later than itself [horizon, time]."""
        now = torch.arange(time - horizon, time, device=device)[:, None]
        return torch.arange(time, device=device) > now
