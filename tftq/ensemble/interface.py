"""The inputs and the output of a member: from its file's metadata, or from the recipe where another tool made the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tftq.data.features.online import VALUES
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS
from tftq.ensemble.answers import Answer
from tftq.errors import AnswerError, EnsembleError
from tftq.spec.metadata import AgentMetadata, ForecasterMetadata

if TYPE_CHECKING:
    from tftq.ensemble.recipe import ForeignRecipe

COLUMNS = (*BAR_COLUMNS, *CLOCK_COLUMNS, *VALUES)  # of a bar: the columns that history inputs select by name
NAMED = 5  # columns in an error

Gives = Literal["quantiles", "scores", "position"]


@dataclass(frozen=True)
class Interface:
    """The inputs and the output of a member.

    Args:
        lookback: bars of its history inputs.
        warmup: bars of each segment that come before them.
        history: input -> columns in order, each of `COLUMNS`; [1, lookback, columns], or in a row where the input has two dimensions.
        output: its name.
        gives: a forecast [1, horizon, levels], scores of positions [1, positions], or the position itself.
        horizon: steps of its future inputs.
        future: input -> columns in order, each of `CLOCK_COLUMNS`; [1, horizon, columns] or in a row.
        position: the input of its own current position, [1, 1]; None where it takes none.
        levels: of quantiles.
        positions: of the scores.
        step: between bars, in nanoseconds; None where the file does not state it.
        time_zone: of its clock columns; None is UTC.
        symbol: of the bars that it was trained on, where that was one.
        trained_until: the time of the last bar that it was trained on, in nanoseconds UTC; None where the file does not state it.
    """

    lookback: int
    warmup: int
    history: Mapping[str, tuple[str, ...]]
    output: str
    gives: Gives
    horizon: int = 0
    future: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    position: str | None = None
    levels: tuple[float, ...] = ()
    positions: tuple[float, ...] = ()
    step: int | None = None
    time_zone: str | None = None
    symbol: str | None = None
    trained_until: int | None = None

    @property
    def needs(self) -> int:
        """Return the number of bars of a segment before its first answer."""
        return self.warmup + self.lookback

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of the history and future inputs, without the batch; an input with two dimensions is flattened."""
        past = {key: (self.lookback, len(columns)) for key, columns in self.history.items()}
        return past | {key: (self.horizon, len(columns)) for key, columns in self.future.items()}

    def read(self, output: np.ndarray) -> Answer:
        """Turn an output into an answer.

        Args:
            output: of one window, finite.

        Raises:
            AnswerError: its shape, range or order is invalid.
        """
        values = np.asarray(output, np.float32).reshape(-1)
        if self.gives == "quantiles":
            if len(values) % len(self.levels):
                raise AnswerError(
                    f"{self.output} {list(np.shape(output))}; allowed: [1, horizon, {len(self.levels)}], or [1, …] of one step"
                )
            return Answer.of_forecast(values.reshape(-1, len(self.levels)), self.levels)
        if self.gives == "scores":
            return Answer.of_scores(values, self.positions)
        if len(values) != 1:
            raise AnswerError(f"{self.output} {list(np.shape(output))}; allowed: one position")
        return Answer(float(values[0]))


def own_interface(name: str, metadata: ForecasterMetadata | AgentMetadata) -> Interface:
    """Read the interface of a model that this package exported: a forecaster, one half of a streaming pair, or an agent.

    Args:
        name: of the member.
        metadata: of its file.

    Raises:
        EnsembleError: it was not trained on bars, or takes columns that bars do not have.
    """
    origin = metadata.origin
    if origin is None:
        raise EnsembleError(f"member {name}: its metadata lacks its origin; export it again with tftq run, or add `foreign`")
    if not origin.of_bars:
        raise EnsembleError(f"member {name}: was trained on a table ({origin.data['kind']}); an ensemble answers bars")
    if static := metadata.names("static"):
        raise EnsembleError(f"member {name}: wants static columns ({_some(static)}), which bars have not")
    if kept := {column.name for key in ("history", "future") for column in metadata.inputs.get(key, ()) if column.categories}:
        raise EnsembleError(f"member {name}: wants categories ({_some(sorted(kept))}); the columns of bars are numbers")
    common = Interface(
        lookback=metadata.lookback,
        warmup=origin.data.get("warmup", 0),
        history={"history": metadata.names("history")},
        output="scores",
        gives="scores",
        position="position" if "position" in metadata.inputs else None,
        step=origin.step_ns,
        time_zone=origin.data.get("time_zone"),
        symbol=origin.data.get("symbol"),
        trained_until=origin.trained_until_ns,
    )
    if isinstance(metadata, AgentMetadata):
        return _checked(name, replace(common, positions=tuple(map(float, metadata.positions))))
    forecast = replace(
        common,
        output="forecast",
        gives="quantiles",
        horizon=metadata.horizon,
        future={"future": metadata.names("future")} if "future" in metadata.inputs else {},
        levels=metadata.quantiles,
    )
    return _checked(name, forecast)


def foreign_interface(name: str, recipe: ForeignRecipe) -> Interface:
    """Make the interface that a recipe gives a file of another tool.

    Args:
        name: of the member.
        recipe: its `foreign` part.

    Raises:
        EnsembleError: it names columns that bars do not have.
    """
    output = recipe.output
    found = Interface(
        lookback=recipe.lookback,
        warmup=recipe.warmup,
        history=recipe.history,
        output=output.name,
        gives=output.kind,
        horizon=recipe.horizon or 0,
        future=recipe.future,
        levels=output.levels if output.kind == "quantiles" else (),
        positions=output.positions if output.kind == "scores" else (),
    )
    return _checked(name, found)


def _checked(name: str, interface: Interface) -> Interface:
    """Refuse columns that are not computed."""
    for inputs, made, what in (
        (interface.history, COLUMNS, "bars have"),
        (interface.future, CLOCK_COLUMNS, "the clock tells of the future"),
    ):
        for key, columns in inputs.items():
            if missing := [column for column in columns if column not in made]:
                raise EnsembleError(
                    f"member {name}: its input {key} wants {len(missing)} of {len(columns)} columns that are none of the {len(made)} that "
                    f"{what}: {_some(missing)}"
                )
    return interface


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
