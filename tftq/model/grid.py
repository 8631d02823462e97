"""Where each variable's knots lie, and the product of hat functions with a table of values at them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KnotGrid(nn.Module):
    """Equally spaced knots between the ends of each variable's range; a category's codes are its knots.

    A table has one row for every knot of every variable, variable after variable. Values beyond the ends take the end value.

    Args:
        low: first knot of each variable [variables].
        high: last knot of each variable [variables].
        count: knots of each variable [variables], int64, at least 2.
    """

    low: Tensor
    step: Tensor
    count: Tensor
    first_row: Tensor

    def __init__(self, low: Tensor, high: Tensor, count: Tensor) -> None:
        super().__init__()
        assert bool((count >= 2).all())
        # A variable that was constant in the training part has no width; any step serves, as its curve has one point.
        width = torch.where(high > low, high - low, torch.ones_like(low))
        self.register_buffer("low", low.float())
        self.register_buffer("step", (width / (count - 1)).float())
        self.register_buffer("count", count.long())
        self.register_buffer("first_row", count.long().cumsum(0) - count)

    @property
    def rows(self) -> int:
        """Rows of a table on this grid."""
        return int(self.count.sum())

    def knots(self, variable: int) -> Tensor:
        """The knots of one variable [count]."""
        steps = torch.arange(int(self.count[variable]), device=self.low.device)
        return self.low[variable] + steps * self.step[variable]

    def locate(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Each value's two neighbouring knots, and what share of the variable's weight each of them gets.

        Args:
            x: values [rows, variables].
            weights: selection weights [rows, variables].

        Returns:
            Table rows [rows, 2 * variables], int64, no row twice, and their shares [rows, 2 * variables].
        """
        last_interval = (self.count - 2).float()
        position = (x - self.low) / self.step
        interval = torch.minimum(position.floor().clamp(min=0), last_interval)
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
