"""The variable selection network (section 4.2): which variables matter at each row, and what each contributes."""

from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.model.curves import FoldedCurves, KnotCurves, TableCurves, category_count, code_rows, group_sizes
from tftq.model.layers import NORM_EPSILON, GatedResidual, GatedResidualNetwork, full_precision
from tftq.model.ordered import OrderedColumns
from tftq.model.recompute import recompute
from tftq.spec.inputs import Column


class _Selection(OrderedColumns):
    """The part that both forms share: the weights of the variables, in the order of the inputs."""

    def weights(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Compute the weight of each variable.

        Args: x [..., variables], scaled, as the inputs name them; context broadcast over x's rows. Returns: the same shape, a row's sum 1.
        """
        weights = self._weights(self.arrange(x), context)
        return weights[..., self.order.argsort()] if self.reorders else weights

    def _weights(self, x: Tensor, context: Tensor | None) -> Tensor:
        """Compute the weights of arranged variables; see `weights`."""
        raise NotImplementedError


class VariableSelection(_Selection):
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
        weights = recompute(self._weights, x, context)
        mixed = self.curves.mix(x.flatten(0, -2), weights.flatten(0, -2))  # [rows, hidden]
        # Not inside the curves: a mask at the knots would be shared by every row.
        return self.dropout(mixed.unflatten(0, x.shape[:-1]))

    def _weights(self, x: Tensor, context: Tensor | None) -> Tensor:
        return F.softmax(self.joint(self.indicators(x), context).float(), dim=-1)


class PaperVariableSelection(_Selection):
    """Variable selection as published: an embedding and a GRN for each variable, and a GRN over all embeddings side by side.

    Evaluated a group of variables at a time and recomputed in the backward pass, never stacked; no gradient is larger than that of a
    group's weights.

    Args:
        columns: the variables.
        hidden: width of the output.
        context: width of the static context; 0 for none.
        dropout: rate of the dropout in the GRNs.
    """

    def __init__(self, columns: tuple[Column, ...], hidden: int, *, context: int, dropout: float) -> None:
        super().__init__(columns)
        variables = len(columns)
        self.embedding_weight = nn.Parameter(torch.empty(self.real, hidden).uniform_(-1, 1))
        self.embedding_bias = nn.Parameter(torch.empty(self.real, hidden).uniform_(-1, 1))
        self.category_embedding = nn.Parameter(torch.randn(category_count(self.columns), hidden))

        def uniform(*shape: int, inputs: int = hidden) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5))

        sizes, flat = group_sizes(self.columns), variables * hidden
        self.input_weights = nn.ParameterList(uniform(size, hidden, hidden) for size in sizes)
        self.input_bias = uniform(variables, 1, hidden)
        self.intermediate_weights = nn.ParameterList(uniform(size, hidden, hidden) for size in sizes)
        self.intermediate_bias = uniform(variables, 1, hidden)
        self.gate_weights = nn.ParameterList(uniform(size, hidden, 2 * hidden) for size in sizes)
        self.gate_bias = uniform(variables, 1, 2 * hidden)
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden))
        self.joint_input_weights = nn.ParameterList(uniform(hidden, size * hidden, inputs=flat) for size in sizes)
        self.joint_input_bias = uniform(hidden, inputs=flat)
        self.joint_skip_weights = nn.ParameterList(uniform(variables, size * hidden, inputs=flat) for size in sizes)
        self.joint_skip_bias = uniform(variables, inputs=flat)
        self.joint = GatedResidual(hidden, variables, context=context, dropout=dropout, folded=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Args: x [..., variables], scaled; context broadcast over x's rows. Returns: [..., hidden]."""
        x = self.arrange(x)
        sizes = group_sizes(self.columns)
        groups = zip(x.flatten(0, -2).split(sizes, 1), self._weights(x, context).flatten(0, -2).split(sizes, 1), strict=True)
        vectors = (self.input_bias, self.intermediate_bias, self.gate_bias, self.norm_weight, self.norm_bias)
        total: Tensor | float = 0.0
        for first, (values, shares), *parameters in zip(
            self._firsts(),
            groups,
            *(self.input_weights, self.intermediate_weights, self.gate_weights),
            *(parameter.split(sizes) for parameter in vectors),
            strict=True,
        ):
            total = total + recompute(self._mix_group, values, shares, first, *parameters)
        assert isinstance(total, Tensor)
        return total.unflatten(0, x.shape[:-1])

    def _weights(self, x: Tensor, context: Tensor | None) -> Tensor:
        hidden, skip = self.joint_input_bias, self.joint_skip_bias
        values = x.flatten(0, -2).split(group_sizes(self.columns), 1)
        for group in zip(values, self._firsts(), self.joint_input_weights, self.joint_skip_weights, strict=True):
            more, more_skip = recompute(self._joint_group, *group)
            hidden, skip = hidden + more, skip + more_skip
        hidden, skip = hidden.unflatten(0, x.shape[:-1]), skip.unflatten(0, x.shape[:-1])
        return F.softmax(self.joint.finish(hidden, skip, context).float(), dim=-1)

    def _firsts(self) -> Iterator[int]:
        """Yield the first variable of each group."""
        return accumulate(group_sizes(self.columns)[:-1], initial=0)

    def _embed(self, x: Tensor, first: int) -> Tensor:
        """Embed a group's variables [variables, rows, hidden]."""
        if first < self.real:
            part = slice(first, first + x.shape[1])
            return x.T[:, :, None] * self.embedding_weight[part, None] + self.embedding_bias[part, None]
        return self.category_embedding[code_rows(self.columns, x, first)]

    def _joint_group(self, x: Tensor, first: int, input_weight: Tensor, skip_weight: Tensor) -> tuple[Tensor, Tensor]:
        flat = self._embed(x, first).transpose(0, 1).flatten(1)  # [rows, variables * hidden]
        return F.linear(flat, input_weight), F.linear(flat, skip_weight)

    def _mix_group(
        self,
        x: Tensor,
        weights: Tensor,
        first: int,
        input_weight: Tensor,
        intermediate_weight: Tensor,
        gate_weight: Tensor,
        *vectors: Tensor,
    ) -> Tensor:
        input_bias, intermediate_bias, gate_bias, norm_weight, norm_bias = vectors  # each [variables, 1, width]
        embedded = self._embed(x, first)  # [variables, rows, hidden]
        hidden = F.elu(torch.baddbmm(input_bias, embedded, input_weight))
        hidden = self.dropout(torch.baddbmm(intermediate_bias, hidden, intermediate_weight))
        gated = F.glu(torch.baddbmm(gate_bias, hidden, gate_weight))
        normal = F.layer_norm(embedded + gated, embedded.shape[-1:], eps=NORM_EPSILON)
        values = normal * norm_weight + norm_bias
        with full_precision(x.device):
            return torch.einsum("nv,vnh->nh", weights, values.float())
