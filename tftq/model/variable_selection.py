"""The variable selection network (section 4.2): which variables matter at each row, and what each of them says."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.data.columns import Column, real_first
from tftq.model.curves import FoldedCurves, KnotCurves, TableCurves, category_count, category_rows, recompute
from tftq.model.layers import NORM_EPSILON, GatedResidualNetwork, full_precision


class _Ordered(nn.Module):
    """Puts the real variables before the categorical ones, as the curves want them, and back."""

    order: Tensor

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__()
        order = real_first(columns)
        self.columns = tuple(columns[i] for i in order)
        self.real = sum(column.categories == 0 for column in columns)
        self.reorders = order != list(range(len(columns)))
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def arrange(self, x: Tensor) -> Tensor:
        """Args: x [..., variables] as the inputs name them. Returns: [..., variables], the real ones first."""
        return x[..., self.order] if self.reorders else x

    def indicators(self, x: Tensor) -> Tensor:
        """Categories as one-hot rows, so that a linear map of the result is the folded map of the embeddings.

        Args: x [..., variables], arranged. Returns: [..., real variables + codes].
        """
        if self.real == len(self.columns):
            return x
        parts = [x[..., : self.real]]
        for offset, column in enumerate(self.columns[self.real :]):
            codes = torch.arange(column.categories, device=x.device, dtype=x.dtype)
            parts.append((x[..., self.real + offset, None] == codes).to(x.dtype))
        return torch.cat(parts, dim=-1)


class VariableSelection(_Ordered):
    """The folded network: the joint GRN is affine in the variables, and the curves take one of three forms.

    Args:
        columns: the variables.
        hidden: width of the output.
        curves: folded, at knots, or as a table; over the arranged columns.
        context: width of the static context; 0 for none.
        dropout: rate of the dropout in the joint GRN and on the output.
    """

    def __init__(
        self, columns: tuple[Column, ...], hidden: int, curves: FoldedCurves | KnotCurves | TableCurves, *, context: int, dropout: float
    ) -> None:
        super().__init__(columns)
        width = self.real + category_count(columns)
        self.joint = GatedResidualNetwork(width, hidden, len(columns), context=context, dropout=dropout, folded=True, project_skip=True)
        self.curves = curves
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Args: x [..., variables], scaled; context broadcast over x's rows. Returns: [..., hidden]."""
        x = self.arrange(x)
        weights = self._weights(x, context)
        mixed = self.curves.mix(x.flatten(0, -2), weights.flatten(0, -2))  # [rows, hidden]
        # Not inside the curves: a mask at the knots would be shared by every row.
        return self.dropout(mixed.unflatten(0, x.shape[:-1]))

    def weights(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The selection weights [..., variables], in the order of `self.columns` (the real variables first)."""
        return self._weights(self.arrange(x), context)

    def _weights(self, x: Tensor, context: Tensor | None) -> Tensor:
        return F.softmax(self.joint(self.indicators(x), context).float(), dim=-1)


class PaperVariableSelection(_Ordered):
    """As published: an embedding and a GRN for each variable, and a GRN over all embeddings side by side.

    Evaluated a chunk of variables at a time and recomputed in the backward pass, never stacked.

    Args:
        columns: the variables.
        hidden: width of the output.
        context: width of the static context; 0 for none.
        dropout: rate of the dropout in the GRNs.
        chunk: variables evaluated together; None stacks them all and keeps everything, as the textbook does.
    """

    def __init__(self, columns: tuple[Column, ...], hidden: int, *, context: int, dropout: float, chunk: int | None = 8) -> None:
        super().__init__(columns)
        self.chunk = chunk
        variables, bound = len(columns), hidden**-0.5
        self.embedding_weight = nn.Parameter(torch.empty(self.real, hidden).uniform_(-1, 1))
        self.embedding_bias = nn.Parameter(torch.empty(self.real, hidden).uniform_(-1, 1))
        self.category_embedding = nn.Parameter(torch.randn(category_count(self.columns), hidden))

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.input_weight, self.input_bias = uniform(variables, hidden, hidden), uniform(variables, 1, hidden)
        self.intermediate_weight, self.intermediate_bias = uniform(variables, hidden, hidden), uniform(variables, 1, hidden)
        self.gate_weight, self.gate_bias = uniform(variables, hidden, 2 * hidden), uniform(variables, 1, 2 * hidden)
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden))
        self.joint = GatedResidualNetwork(variables * hidden, hidden, variables, context=context, dropout=dropout, folded=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Args: x [..., variables], scaled; context broadcast over x's rows. Returns: [..., hidden]."""
        x = self.arrange(x)
        weights = self._weights(x, context).flatten(0, -2)  # [rows, variables]
        size = self.chunk or len(self.columns)
        total = torch.zeros(weights.shape[0], self.norm_weight.shape[-1], device=x.device)
        parameters = (
            *(self.input_weight, self.input_bias, self.intermediate_weight, self.intermediate_bias),
            *(self.gate_weight, self.gate_bias, self.norm_weight, self.norm_bias),
        )
        chunks = zip(*(parameter.split(size) for parameter in parameters), strict=True)
        for start, chunk in zip(range(0, len(self.columns), size), chunks, strict=True):
            part = slice(start, start + size)
            total = total + recompute(self.chunk is not None, self._mix_chunk, x.flatten(0, -2), weights[:, part], part, *chunk)
        return total.unflatten(0, x.shape[:-1])

    def weights(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The selection weights [..., variables], in the order of `self.columns` (the real variables first)."""
        return self._weights(self.arrange(x), context)

    def _weights(self, x: Tensor, context: Tensor | None) -> Tensor:
        size, hidden = self.chunk or len(self.columns), self.norm_weight.shape[-1]
        assert self.joint.input.bias is not None and isinstance(self.joint.skip, nn.Linear)
        first, skip = self.joint.input.bias, self.joint.skip.bias
        maps = zip(self.joint.input.weight.split(size * hidden, dim=1), self.joint.skip.weight.split(size * hidden, dim=1), strict=True)
        for start, (input_map, skip_map) in zip(range(0, len(self.columns), size), maps, strict=True):
            part = slice(start, start + size)
            more, more_skip = recompute(self.chunk is not None, self._joint_chunk, x.flatten(0, -2), part, input_map, skip_map)
            first, skip = first + more, skip + more_skip
        first, skip = first.unflatten(0, x.shape[:-1]), skip.unflatten(0, x.shape[:-1])
        if self.joint.context is not None:
            first = first + self.joint.context(context)
        return F.softmax(self.joint.finish(first, skip).float(), dim=-1)

    def _embed(self, x: Tensor, part: slice) -> Tensor:
        """The embeddings of some of the variables [variables, rows, hidden]."""
        real = slice(part.start, max(part.start, min(part.stop, self.real)))
        columns = x.T[real, :, None]  # [variables, rows, 1]
        embedded = [columns * self.embedding_weight[real, None] + self.embedding_bias[real, None]]
        for variable, rows in category_rows(self.columns):
            if part.start <= variable < part.stop:
                embedded.append(self.category_embedding[x[:, variable].long() + rows.start][None])
        return torch.cat(embedded)

    def _joint_chunk(self, x: Tensor, part: slice, input_map: Tensor, skip_map: Tensor) -> tuple[Tensor, Tensor]:
        flat = self._embed(x, part).transpose(0, 1).flatten(1)  # [rows, variables * hidden]
        return F.linear(flat, input_map), F.linear(flat, skip_map)

    def _mix_chunk(
        self,
        x: Tensor,
        weights: Tensor,
        part: slice,
        input_weight: Tensor,
        input_bias: Tensor,
        intermediate_weight: Tensor,
        intermediate_bias: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
    ) -> Tensor:
        embedded = self._embed(x, part)  # [variables, rows, hidden]
        hidden = F.elu(torch.baddbmm(input_bias, embedded, input_weight))
        hidden = self.dropout(torch.baddbmm(intermediate_bias, hidden, intermediate_weight))
        gated = F.glu(torch.baddbmm(gate_bias, hidden, gate_weight))
        normal = F.layer_norm(embedded + gated, embedded.shape[-1:], eps=NORM_EPSILON)
        values = normal * norm_weight + norm_bias
        with full_precision(x.device):
            return torch.einsum("nv,vnh->nh", weights, values.float())
