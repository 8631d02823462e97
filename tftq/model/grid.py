"""Where each variable's knots lie, and the product of hat functions with a table of values at them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        self.register_buffer("first_row", count.cumsum(0) - count)

    @property
    def rows(self) -> int:
        """Rows of a table on this grid."""
        return sum(self.counts)

    def knots(self, variable: int) -> Tensor:
        """The knots of one variable [count]."""
        return self.low[variable] + torch.arange(self.counts[variable], device=self.low.device) * self.step[variable]

    def locate(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Each value's two neighbouring knots, and what share of the variable's weight each of them gets.

        Args:
            x: values [rows, variables].
            weights: selection weights [rows, variables].

        Returns:
            Table rows [rows, 2 * variables], int64, no row twice, and their shares [rows, 2 * variables].
        """
        position = (x - self.low) / self.step
        interval = torch.minimum(position.floor().clamp(min=0), self.last_interval)
        fraction = (position - interval).clamp(0, 1)
        lower = interval.long() + self.first_row
        index = torch.cat([lower, lower + 1], dim=1)
        share = torch.cat([weights * (1 - fraction), weights * fraction], dim=1)
        return index, share

    def product(self, index: Tensor, share: Tensor, table: Tensor) -> Tensor:
        """Σ share · table[index], never holding [rows, table rows]; for training, where it is a gather.

        Args: index, share [rows, 2 * variables]; table [table rows, hidden]. Returns: [rows, hidden].
        """
        return F.embedding_bag(index, table, per_sample_weights=share, mode="sum")
