"""The positions of each variable's knots, and the product of hat functions with a table of values at them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK_FLOATS = 2**22  # of the dense rows in the backward pass: 16 MiB


class KnotGrid(nn.Module):
    """Equally spaced knots between the ends of each variable's range; a category's codes are its knots.

    A table has one row for every knot of every variable, variable after variable. Values beyond the ends take the end value.

    Args:
        low: first knot of each variable [variables].
        high: last knot of each variable [variables].
        counts: how many knots each variable has, at least 2.
    """

    low: Tensor
    step: Tensor
    last_interval: Tensor
    first_row: Tensor

    def __init__(self, low: Tensor, high: Tensor, counts: Sequence[int]) -> None:
        super().__init__()
        assert len(counts) == len(low) and min(counts) >= 2
        self.counts = tuple(counts)
        count = torch.tensor(counts, device=low.device)
        # A variable that was constant in the training part has no width; any step serves, as its curve has one point.
        width = torch.where(high > low, high - low, torch.ones_like(low))
        self.register_buffer("low", low.float())
        self.register_buffer("step", (width / (count - 1)).float())
        self.register_buffer("last_interval", (count - 2).float())
        self.register_buffer("first_row", (count.cumsum(0) - count).int())

    @property
    def rows(self) -> int:
        """Return the number of rows of a table on this grid."""
        return sum(self.counts)

    def knots(self, variable: int) -> Tensor:
        """Return the knots of one variable [count]."""
        return self.low[variable] + torch.arange(self.counts[variable], device=self.low.device) * self.step[variable]

    def knots_of(self, variables: slice) -> Tensor:
        """Return the knots of neighbouring variables with the same number of knots [count, variables]."""
        numbers = torch.arange(self.counts[variables.start], device=self.low.device)
        return self.low[variables] + numbers[:, None] * self.step[variables]

    def locate(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Find each value's two neighbouring knots, and the share of the variable's weight that each gets.

        Args:
            x: values [rows, variables].
            weights: selection weights [rows, variables].

        Returns:
            Table rows [rows, 2 * variables], int32, no row twice, and their shares [rows, 2 * variables].
        """
        position = (x - self.low) / self.step
        interval = torch.minimum(position.floor().clamp(min=0), self.last_interval)
        fraction = (position - interval).clamp(0, 1)
        lower = interval.int() + self.first_row
        index = torch.cat([lower, lower + 1], dim=1)
        share = torch.cat([weights * (1 - fraction), weights * fraction], dim=1)
        return index, share

    def product(self, x: Tensor, weights: Tensor, table: Tensor) -> Tensor:
        """Sum weight · (the table's row at the value, interpolated linearly) over variables.

        Args: x, weights [rows, variables]; table [table rows, hidden], float32. Returns: [rows, hidden].
        """
        return table_product(*self.locate(x, weights), table)


def table_product(index: Tensor, share: Tensor, table: Tensor) -> Tensor:
    """Compute Σ share · table[index]: the sparse rows `w ⊗ hat` times a table, without ever holding [rows, table rows].

    Args:
        index: table rows [rows, entries], int32, none twice in a row.
        share: the weight of each of them [rows, entries], float32.
        table: values [table rows, hidden], float32.

    Returns:
        [rows, hidden], float32.
    """
    return _TableProduct.apply(index, share, table)


class _TableProduct(torch.autograd.Function):
    """A gather forward; backward a dense product a chunk of rows at a time, since scattering gradients would first sort all indices."""

    @staticmethod
    def forward(ctx, index: Tensor, share: Tensor, table: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(index, share, table)
        return F.embedding_bag(index, table, per_sample_weights=share, mode="sum")

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor, Tensor]:  # type: ignore[no-untyped-def]
        index, share, table = ctx.saved_tensors
        table_gradient = torch.zeros_like(table)
        share_gradient = torch.empty_like(share)
        rows = min(max(CHUNK_FLOATS // len(table), 1), len(index))
        buffer = table.new_empty(rows, len(table))
        for start in range(0, len(index), rows):
            part = slice(start, start + rows)
            where = index[part].long()
            dense = buffer[: len(where)].zero_().scatter_(1, where, share[part])  # [chunk, table rows]
            table_gradient.addmm_(dense.T, gradient[part])
            torch.mm(gradient[part], table.T, out=dense)
            share_gradient[part] = dense.gather(1, where)
        return None, share_gradient, table_gradient
