"""One table of inputs: every column with its role; data, model, export and calibration all derive from it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Role = Literal["static", "observed", "known"]


@dataclass(frozen=True)
class Column:
    """One input variable.

    Args:
        name: its name, unique within the inputs.
        role: static (one value a window), observed (known up to now) or known (known over the horizon too).
        categories: 0 for a real number; else the number of codes, code 0 being the unseen category.
    """

    name: str
    role: Role
    categories: int = 0


@dataclass(frozen=True)
class Inputs:
    """What the model sees: the columns in their order and the shape of a window."""

    columns: tuple[Column, ...]
    lookback: int
    horizon: int

    def _of(self, role: Role) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == role)

    @property
    def static(self) -> tuple[Column, ...]:
        """The columns of the static input; may be empty."""
        return self._of("static")

    @property
    def history(self) -> tuple[Column, ...]:
        """The columns of the history input: the observed ones, then the known ones."""
        return self._of("observed") + self._of("known")

    @property
    def future(self) -> tuple[Column, ...]:
        """The columns of the future input: the known ones."""
        return self._of("known")

    def shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        """The shape of each model input, by name and in order; `static` only where there is one."""
        shapes: dict[str, tuple[int, ...]] = {
            "history": (batch, self.lookback, len(self.history)),
            "future": (batch, self.horizon, len(self.future)),
        }
        if self.static:
            shapes["static"] = (batch, len(self.static))
        return shapes


def real_first(columns: tuple[Column, ...]) -> list[int]:
    """The positions of the real columns, then those of the categorical ones: the order the curves are kept in."""
    return sorted(range(len(columns)), key=lambda position: columns[position].categories > 0)


class Batch(NamedTuple):
    """A batch of windows in raw units, float32; categories are codes stored as floats.

    history [batch, lookback, history columns], future [batch, horizon, known columns],
    static [batch, static columns] or None, target [batch, horizon] in the target's unit.
    """

    history: Tensor
    future: Tensor
    static: Tensor | None
    target: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors the model takes, in the order of `Inputs.shapes`."""
        return (self.history, self.future) if self.static is None else (self.history, self.future, self.static)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        static = None if self.static is None else self.static.to(device)
        return Batch(self.history.to(device), self.future.to(device), static, self.target.to(device))
