"""A variable's gated residual network sees one number, so it is a curve; all curves of one input, in three forms.

`mix` is the same contract for each form: Σ over variables of weight · curve(value).
"""

from collections.abc import Iterator
from itertools import accumulate, repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tftq.model.grid import KnotGrid
from tftq.model.layers import NORM_EPSILON, full_precision
from tftq.model.recompute import recompute
from tftq.spec.inputs import Column

GROUP = 8  # variables evaluated together, whose gates are one parameter


def category_count(columns: tuple[Column, ...]) -> int:
    """Count the codes of all categorical columns together."""
    return sum(column.categories for column in columns)


def category_rows(columns: tuple[Column, ...]) -> Iterator[tuple[int, slice]]:
    """List each categorical variable with its codes' rows in a table of all codes."""
    first = 0
    for variable, column in enumerate(columns):
        if column.categories:
            yield variable, slice(first, first + column.categories)
            first += column.categories


def code_rows(columns: tuple[Column, ...], x: Tensor, first: int) -> Tensor:
    """Return the rows, in a table of all codes, of the values of categorical variables from `first` on.

    Args: x, codes [rows, variables]. Returns: int64 [variables, rows].
    """
    starts = {variable: rows.start for variable, rows in category_rows(columns)}
    offsets = torch.tensor([starts[variable] for variable in range(first, first + x.shape[1])], device=x.device)
    return x.T.long() + offsets[:, None]


def group_sizes(columns: tuple[Column, ...]) -> list[int]:
    """Return how many variables each group evaluates together: real ones first, then categorical ones, never both."""
    real = sum(column.categories == 0 for column in columns)
    counts = [real, len(columns) - real]
    return [min(GROUP, count - start) for count in counts for start in range(0, count, GROUP)]


class FoldedCurves(nn.Module):
    """The folded gated residual networks of all variables, evaluated at every row, a group of variables at a time.

    With the embedding x·w + b merged in, both the value before the ELU and the skip are affine in x for a real variable,
    and a row of a table for a category. Nothing of size [rows, variables, hidden] is kept for the backward pass, and no gradient
    is larger than that of a group's gates.

    Args:
        columns: the variables, the real ones before the categorical ones.
        hidden: width of the output.
        shared: all variables have the gates' weight in common; everything else is each variable's own.
    """

    def __init__(self, columns: tuple[Column, ...], hidden: int, *, shared: bool = False) -> None:
        super().__init__()
        self.columns, self.shared = columns, shared
        self.real = sum(column.categories == 0 for column in columns)
        assert all(column.categories == 0 for column in columns[: self.real])
        real, codes, variables = self.real, category_count(columns), len(columns)
        # As the composed maps of the paper would start: W(x·w + b) has a third of the spread of w and b.
        self.slope = nn.Parameter(torch.randn(real, hidden) / 3)
        self.intercept = nn.Parameter(torch.randn(real, hidden) / 3)
        self.skip_slope = nn.Parameter(torch.empty(real, hidden).uniform_(-1, 1))
        self.skip_intercept = nn.Parameter(torch.empty(real, hidden).uniform_(-1, 1))
        self.category_input = nn.Parameter(torch.randn(codes, hidden) / 3)
        self.category_skip = nn.Parameter(torch.randn(codes, hidden))
        bound = hidden**-0.5
        sizes = [1] if shared else group_sizes(columns)
        self.gate_weights = nn.ParameterList(torch.empty(size, hidden, 2 * hidden).uniform_(-bound, bound) for size in sizes)
        self.gate_bias = nn.Parameter(torch.empty(variables, 1, 2 * hidden).uniform_(-bound, bound))
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden))

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """Sum weight · curve(value) over variables.

        Args: x, weights [rows, variables]; categories are codes. Returns: [rows, hidden].
        """
        sizes = group_sizes(self.columns)
        total = torch.zeros(x.shape[0], self.slope.shape[1], device=x.device)
        for group, values, shares in zip(self._groups(), x.split(sizes, 1), weights.split(sizes, 1), strict=True):
            total = total + recompute(self._mix_group, values, shares, *group)
        return total

    def evaluate(self, variable: int, x: Tensor) -> Tensor:
        """Evaluate one variable's curve at the values x [rows]. Returns: [rows, hidden]."""
        one = slice(variable, variable + 1)
        weight = self.gate_weight(variable)[None]
        return self._curves(*self._affine(x[:, None], variable), weight, self.gate_bias[one], self.norm_weight[one], self.norm_bias[one])[0]

    def gate_weight(self, variable: int) -> Tensor:
        """Return the weight of one variable's gate [hidden, 2 * hidden]."""
        if self.shared:
            return self.gate_weights[0][0]
        group, place = next((weight, variable - first) for first, weight, *_ in self._groups() if first <= variable < first + len(weight))
        return group[place]

    def _groups(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
        """Yield each group's first variable and its gates and norms."""
        sizes = group_sizes(self.columns)
        firsts = accumulate(sizes[:-1], initial=0)
        weights = repeat(self.gate_weights[0], len(sizes)) if self.shared else self.gate_weights
        # One split for all groups: its backward joins the gradients once, where slices would each make a full-size one.
        others = (parameter.split(sizes) for parameter in (self.gate_bias, self.norm_weight, self.norm_bias))
        yield from zip(firsts, weights, *others, strict=True)

    def _mix_group(self, x: Tensor, weights: Tensor, first: int, *gate: Tensor) -> Tensor:
        values = self._curves(*self._affine(x, first), *gate)  # [variables, rows, hidden]
        with full_precision(x.device):
            return torch.einsum("nv,vnh->nh", weights, values.float())

    def _affine(self, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Compute the inputs of the ELU and the skip, for the variables from `first` on: both [variables, rows, hidden]."""
        if first < self.real:
            part = slice(first, first + x.shape[1])
            columns = x.T[:, :, None]  # [variables, rows, 1]
            hidden = columns * self.slope[part, None] + self.intercept[part, None]
            return hidden, columns * self.skip_slope[part, None] + self.skip_intercept[part, None]
        rows = code_rows(self.columns, x, first)  # [variables, rows]
        return self.category_input[rows], self.category_skip[rows]

    def _curves(
        self, hidden: Tensor, skip: Tensor, gate_weight: Tensor, gate_bias: Tensor, norm_weight: Tensor, norm_bias: Tensor
    ) -> Tensor:
        """Compute the GRN's output from the inputs of the ELU and the skip, all [variables, rows, hidden]."""
        product = F.elu(hidden) @ gate_weight[0] + gate_bias if self.shared else torch.baddbmm(gate_bias, F.elu(hidden), gate_weight)
        normal = F.layer_norm(skip + F.glu(product), skip.shape[-1:], eps=NORM_EPSILON)
        return normal * norm_weight + norm_bias


class KnotCurves(FoldedCurves):
    """The folded networks trained through their values at the knots: no cost grows with rows · variables · hidden."""

    def __init__(self, columns: tuple[Column, ...], hidden: int, grid: KnotGrid, *, shared: bool = False) -> None:
        super().__init__(columns, hidden, shared=shared)
        self.grid = grid

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """Mix the curves, interpolated linearly between the knots; see `FoldedCurves.mix`."""
        return recompute(self.grid.product, x, weights, self.table())

    def table(self) -> Tensor:
        """Evaluate every curve at each of its knots [table rows, hidden], in FP32."""
        parts = []
        for first, *gate in self._groups():
            if first < self.real:
                parts.append(recompute(self._real_rows, first, *gate))
        parts += [self.evaluate(variable, self.grid.knots(variable)).float() for variable in range(self.real, len(self.columns))]
        return torch.cat(parts)

    def _real_rows(self, first: int, *gate: Tensor) -> Tensor:
        """Compute a group's rows of the table; all real variables have the same number of knots."""
        x = self.grid.knots_of(slice(first, first + len(gate[1])))  # [knots, variables]
        return self._curves(*self._affine(x, first), *gate).flatten(0, 1).float()


class TableCurves(nn.Module):
    """The curves' values alone, as one table: what is quantized, fine-tuned and exported.

    Args:
        grid: the knots the values belong to.
        values: the table [table rows, hidden].
    """

    def __init__(self, grid: KnotGrid, values: Tensor) -> None:
        super().__init__()
        assert values.shape[0] == grid.rows
        self.grid = grid
        self.values = nn.Parameter(values)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """Mix the curves of the table; see `KnotCurves.mix`."""
        return recompute(self._product, x, weights)

    def _product(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.grid.product(x, weights, self.values)
