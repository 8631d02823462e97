"""Batches as tensors: the door from the arrays of the data to the network."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tftq.data.windows import BatchArrays


class NamedInputs(Protocol):
    """Inputs of a network by name."""

    @property
    def named(self) -> dict[str, Tensor]:
        """Return the tensors the network takes by name, in its order."""


class WindowSource(Protocol):
    """Windows that can be gathered by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: ArrayLike, /) -> BatchArrays:
        """Return the windows at `indices`, in raw units."""


class Batch(NamedTuple):
    """A batch of windows in raw units, float32; categories are codes stored as floats.

    history [batch, lookback, history columns], future [batch, horizon, known columns],
    static [batch, static columns] or None, target [batch, horizon] in the target's unit.
    """

    history: Tensor
    future: Tensor
    static: Tensor | None
    target: Tensor

    @classmethod
    def of(cls, arrays: BatchArrays) -> Self:
        """Copy arrays to tensors on the CPU; the memory is torch's own, so that a counter of tensors sees it."""
        parts = (None if part is None else torch.as_tensor(part).clone() for part in arrays)
        return cls(*parts)  # type: ignore[arg-type]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the tensors the model takes, in the order of `Inputs.shapes`."""
        return (self.history, self.future) if self.static is None else (self.history, self.future, self.static)

    @property
    def named(self) -> dict[str, Tensor]:
        """Return the tensors the model takes, by name."""
        return dict(zip(("history", "future", "static"), self.inputs, strict=False))

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch on `device`."""
        static = None if self.static is None else self.static.to(device)
        return Batch(self.history.to(device), self.future.to(device), static, self.target.to(device))


def gather(windows: WindowSource, indices: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Gather windows as tensors on a device.

    Args:
        windows: to gather from.
        indices: which ones, [batch].
        device: where to put them.
    """
    return Batch.of(windows.batch(torch.as_tensor(indices).numpy())).to(device)
