"""A variable's gated residual network sees one number, so it is a curve; all curves of one input, in three forms.

`mix` is the same contract for each form: Σ over variables of weight · curve(value).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tftq.data.columns import Column
from tftq.model.grid import KnotGrid, table_product
from tftq.model.layers import NORM_EPSILON, full_precision


def category_count(columns: tuple[Column, ...]) -> int:
    """Codes of all categorical columns together."""
    return sum(column.categories for column in columns)


def category_rows(columns: tuple[Column, ...]) -> Iterator[tuple[int, slice]]:
    """Each categorical variable with its codes' rows in a table of all codes."""
    first = 0
    for variable, column in enumerate(columns):
        if column.categories:
            yield variable, slice(first, first + column.categories)
            first += column.categories


def recompute(in_backward: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result, its intermediate tensors dropped and computed again in the backward pass where asked."""
    return checkpoint(function, *arguments, use_reentrant=False) if in_backward else function(*arguments)


class FoldedCurves(nn.Module):
    """The folded gated residual networks of all variables, evaluated at every row, a chunk of variables at a time.

    With the embedding x·w + b merged in, both the value before the ELU and the skip are affine in x for a real variable,
    and a row of a table for a category. Nothing of size [rows, variables, hidden] is kept for the backward pass.

    Args:
        columns: the variables, the real ones before the categorical ones.
        hidden: width of the output.
        chunk: variables evaluated together and recomputed in the backward pass; None keeps everything.
    """

    def __init__(self, columns: tuple[Column, ...], hidden: int, *, chunk: int | None = 8) -> None:
        super().__init__()
        self.columns, self.chunk = columns, chunk
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
        self.gate_weight = nn.Parameter(torch.empty(variables, hidden, 2 * hidden).uniform_(-bound, bound))
        self.gate_bias = nn.Parameter(torch.empty(variables, 1, 2 * hidden).uniform_(-bound, bound))
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden))

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """Σ over variables of weight · curve(value).

        Args: x, weights [rows, variables]; categories are codes. Returns: [rows, hidden].
        """
        size = self.chunk or len(self.columns)
        total = torch.zeros(x.shape[0], self.slope.shape[1], device=x.device)
        # One split for all chunks: its backward joins the gradients once, where slices would each make a full-size one.
        gates = zip(*(parameter.split(size) for parameter in self._gate_parameters()), strict=True)
        for start, gate in zip(range(0, len(self.columns), size), gates, strict=True):
            part = slice(start, start + size)
            total = total + recompute(self.chunk is not None, self._mix_chunk, x[:, part], weights[:, part], start, *gate)
        return total

    def evaluate(self, variable: int, x: Tensor) -> Tensor:
        """One variable's curve at the values x [rows]. Returns: [rows, hidden]."""
        gate = (parameter[variable : variable + 1] for parameter in self._gate_parameters())
        return self._curves(*self._affine(x[:, None], variable), *gate)[0]

    def _gate_parameters(self) -> tuple[Tensor, ...]:
        return self.gate_weight, self.gate_bias, self.norm_weight, self.norm_bias

    def _mix_chunk(self, x: Tensor, weights: Tensor, start: int, *gate: Tensor) -> Tensor:
        values = self._curves(*self._affine(x, start), *gate)  # [variables, rows, hidden]
        with full_precision(x.device):
            return torch.einsum("nv,vnh->nh", weights, values.float())

    def _affine(self, x: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """What enters the ELU, and the skip, of the variables from `start` on: both [variables, rows, hidden]."""
        stop = start + x.shape[1]
        real = slice(start, max(start, min(stop, self.real)))
        columns = x.T[: real.stop - real.start, :, None]  # [variables, rows, 1]
        hidden = [columns * self.slope[real, None] + self.intercept[real, None]]
        skip = [columns * self.skip_slope[real, None] + self.skip_intercept[real, None]]
        for variable, rows in category_rows(self.columns):
            if start <= variable < stop:
                row = x[:, variable - start].long() + rows.start
                hidden.append(self.category_input[row][None])
                skip.append(self.category_skip[row][None])
        return torch.cat(hidden), torch.cat(skip)

    def _curves(
        self, hidden: Tensor, skip: Tensor, gate_weight: Tensor, gate_bias: Tensor, norm_weight: Tensor, norm_bias: Tensor
    ) -> Tensor:
        """From what enters the ELU to the GRN's output, all [variables, rows, hidden]."""
        gated = F.glu(torch.baddbmm(gate_bias, F.elu(hidden), gate_weight))
        normal = F.layer_norm(skip + gated, skip.shape[-1:], eps=NORM_EPSILON)
        return normal * norm_weight + norm_bias


class KnotCurves(FoldedCurves):
    """The folded networks trained through their values at the knots: no cost grows with rows · variables · hidden."""

    def __init__(self, columns: tuple[Column, ...], hidden: int, grid: KnotGrid) -> None:
        super().__init__(columns, hidden, chunk=None)
        self.grid = grid

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """As `FoldedCurves.mix`, interpolated linearly between the knots."""
        index, share = self.grid.locate(x, weights)
        return table_product(index, share, self.table())

    def table(self) -> Tensor:
        """Every curve's value at each of its knots [table rows, hidden], in FP32."""
        parts = []
        if self.real:  # all real variables have as many knots: one batched product
            x = torch.stack([self.grid.knots(variable) for variable in range(self.real)], dim=1)  # [knots, variables]
            gate = self._gate_parameters()
            if self.real < len(self.columns):  # a slice of all of it would still cost a full-size gradient
                gate = tuple(parameter[: self.real] for parameter in gate)
            parts.append(self._curves(*self._affine(x, 0), *gate).flatten(0, 1).float())
        parts += [self.evaluate(variable, self.grid.knots(variable)).float() for variable in range(self.real, len(self.columns))]
        return torch.cat(parts)


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
        """As `KnotCurves.mix`."""
        index, share = self.grid.locate(x, weights)
        return table_product(index, share, self.values)
