"""One table of inputs: every column with its role; data, model, export and calibration all derive from it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

Role = Literal["static", "observed", "known"]


@dataclass(frozen=True)
class Column:
    """One input variable.

    Args:
        name: its name, unique within the inputs.
        role: static (one value per window), observed (known up to now) or known (known over the horizon too).
        categories: 0 for a real number; else the number of codes, code 0 being the unseen category.
    """

    name: str
    role: Role
    categories: int = 0


@dataclass(frozen=True)
class Inputs:
    """The columns in their order and the shape of a window.

    Args:
        columns: every column of the data.
        lookback: rows of the history.
        horizon: steps that are forecast.
        left_out: columns removed from the history input; known ones stay in the future input.
    """

    columns: tuple[Column, ...]
    lookback: int
    horizon: int
    left_out: tuple[str, ...] = ()

    def _of(self, role: Role) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == role)

    @property
    def static(self) -> tuple[Column, ...]:
        """Return the columns of the static input; may be empty."""
        return self._of("static")

    @property
    def temporal(self) -> tuple[Column, ...]:
        """Return the columns of a row of data: the observed ones, then the known ones."""
        return self._of("observed") + self._of("known")

    @property
    def first_known(self) -> int:
        """Return the index in a row of data at which the known columns begin."""
        return len(self._of("observed"))

    @property
    def history_places(self) -> list[int]:
        """Return the indices in a row of data of the history input's columns."""
        gone = set(self.left_out)
        return [place for place, column in enumerate(self.temporal) if column.name not in gone]

    @property
    def history(self) -> tuple[Column, ...]:
        """Return the columns of the history input: those of a row without `left_out`."""
        temporal = self.temporal
        return tuple(temporal[place] for place in self.history_places)

    @property
    def future(self) -> tuple[Column, ...]:
        """Return the columns of the future input: the known ones."""
        return self._of("known")

    def without(self, names: Collection[str]) -> "Inputs":
        """Return the same inputs with further columns removed from the history."""
        gone = {*self.left_out, *names}
        return replace(self, left_out=tuple(column.name for column in self.temporal if column.name in gone))

    def shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each model input, by name and in order; `static` only where there is one."""
        shapes: dict[str, tuple[int, ...]] = {
            "history": (batch, self.lookback, len(self.history)),
            "future": (batch, self.horizon, len(self.future)),
        }
        if self.static:
            shapes["static"] = (batch, len(self.static))
        return shapes


def real_first(columns: tuple[Column, ...]) -> list[int]:
    """Return the indices of the real columns, then of the categorical ones: the order of the curves."""
    return sorted(range(len(columns)), key=lambda position: columns[position].categories > 0)
