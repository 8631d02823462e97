"""The columns of one input with the real ones first, and categories as one-hot rows."""

import torch
from torch import Tensor, nn

from tftq.spec.inputs import Column, real_first


class OrderedColumns(nn.Module):
    """Put the real columns before the categorical ones, and encode categories for a linear map.

    Args:
        columns: as the inputs name them.
    """

    order: Tensor

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__()
        order = real_first(columns)
        self.columns = tuple(columns[i] for i in order)
        self.real = sum(column.categories == 0 for column in columns)
        self.reorders = order != list(range(len(columns)))
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def arrange(self, x: Tensor) -> Tensor:
        """Args: x [..., columns] as the inputs name them. Returns: [..., columns], the real ones first."""
        return x[..., self.order] if self.reorders else x

    def indicators(self, x: Tensor) -> Tensor:
        """Encode categories as one-hot rows, so that a linear map of the result is a sum of embeddings.

        Args: x [..., columns], arranged. Returns: [..., real columns + codes].
        """
        if self.real == len(self.columns):
            return x
        parts = [x[..., : self.real]]
        for offset, column in enumerate(self.columns[self.real :]):
            codes = torch.arange(column.categories, device=x.device, dtype=x.dtype)
            parts.append((x[..., self.real + offset, None] == codes).to(x.dtype))
        return torch.cat(parts, dim=-1)


class RowEmbedding(OrderedColumns):
    """A linear map of a row's real columns plus an embedding of each category's code.

    Args:
        columns: of the row.
        hidden: width of the output.
    """

    def __init__(self, columns: tuple[Column, ...], hidden: int) -> None:
        super().__init__(columns)
        self.linear = nn.Linear(sum(column.categories or 1 for column in columns), hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., columns], scaled. Returns: [..., hidden]."""
        embedded: Tensor = self.linear(self.indicators(self.arrange(x)))
        return embedded
