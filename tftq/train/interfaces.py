"""What training asks of the parts that it is handed."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tftq.data.columns import Batch


class Windows(Protocol):
    """Windows that can be gathered by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor | Sequence[int], /) -> Batch:
        """The windows at `indices`, in raw units."""


class Timeline(Protocol):
    """Something that takes down the memory in use."""

    def record(self, phase: str, epoch: int) -> None:
        """Leave one record for a phase of an epoch, epochs counted from 1."""
