"""Forecast a file of bars or of a table by an exported model: the file's columns in, quantiles out, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tftq.errors import PredictError
from tftq.serve.find import BATCH_SIZE, CHANGEABLE, find_model
from tftq.serve.resident import trim_heap
from tftq.serve.session import feeds, open_session, require_runtime
from tftq.spec.metadata import AgentMetadata, HalfMetadata, InputColumn, read_metadata

if TYPE_CHECKING:
    from tftq.data.history import History, Outcome
    from tftq.spec.formats import Format

# Arrow, pydantic and what else reads data is imported once a model is open: it then takes up the memory that opening one has freed.


class ServedModel:
    """A forecaster's file opened in ONNX Runtime, and its metadata.

    Args:
        path: an exported .onnx file.
        threads: threads within an operator; 0 leaves the number to the runtime.

    Attributes:
        path: the file.
        metadata: of the file.
        origin: how its columns are made from a file of data.
        session: the runtime's.

    Raises:
        MetadataError: not an ONNX file, or damaged metadata.
        PredictError: a missing file, one that ONNX Runtime cannot load, half of a streaming pair, a policy, or one that no run made.
        ProviderError: ONNX Runtime is too old for the file.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        if not path.is_file():
            raise PredictError(f"{path}: no such file; give an exported .onnx model or the folder of a run")
        metadata = read_metadata(path)
        if isinstance(metadata, HalfMetadata):
            raise PredictError(f"{path}: one half of a streaming pair, for tftq.Stream; give the model in one piece")
        if isinstance(metadata, AgentMetadata):
            raise PredictError(f"{path}: a policy, which takes positions and forecasts nothing; run it as a member of tftq ensemble")
        if metadata is None or metadata.origin is None:
            raise PredictError(f"{path}: its metadata says nothing of the data it was trained on; export the model again with tftq run")
        require_runtime(path, metadata.oldest_runtime)
        try:
            self.session = open_session(path, threads=threads)
        except Exception as error:  # the runtime's errors have no common base
            raise PredictError(f"{path}: ONNX Runtime cannot load it: {error}") from error
        self.path, self.metadata, self.origin = path, metadata, metadata.origin

    def forecast(self, history: np.ndarray, future: np.ndarray) -> np.ndarray:
        """Run the model.

        Args:
            history: raw columns [batch, lookback, history columns].
            future: raw columns [batch, horizon, known columns].

        Returns:
            float32 [batch, horizon, quantiles], in the target's unit.
        """
        return np.asarray(self.session.run(["forecast"], feeds(self.session, (history, future)))[0], np.float32)


class Forecasts(NamedTuple):
    """Forecasts of a batch of windows.

    origins int64 nanoseconds UTC [batch]: the last history row; times int64 [batch, horizon]: the forecast times;
    values float32 [batch, horizon, quantiles] in the target's unit; last_close float64 [batch], None for tables; outcome: what happened.
    """

    origins: np.ndarray
    times: np.ndarray
    values: np.ndarray
    last_close: np.ndarray | None
    outcome: Outcome

    @property
    def prices(self) -> np.ndarray | None:
        """Return the prices that the forecast log returns correspond to, float64 [batch, horizon, quantiles]; None for tables."""
        return None if self.last_close is None else self.last_close[:, None, None] * np.exp(self.values.astype(np.float64))


@dataclass(frozen=True)
class Prediction:
    """Windows of a file and the model that forecasts them.

    Args:
        model: the model.
        history: the windows, in order of time.
    """

    model: ServedModel
    history: History

    def __len__(self) -> int:
        return len(self.history)

    @property
    def notes(self) -> list[str]:
        """Return notes for the user on how the data was read."""
        return self.history.notes

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[Forecasts]:
        """Forecast batch by batch; nothing of a batch is kept.

        Args:
            batch_size: windows per run of the model.

        Yields:
            The forecasts of the windows, in order.

        Raises:
            PredictError: an input or a forecast that is not finite.
        """
        from tftq.data.files import iso

        for start in range(0, len(self.history), batch_size):
            indices = np.arange(start, min(start + batch_size, len(self.history)))
            history, future = self.history.batch(indices)
            self._check_inputs(indices, history, future)
            values = self.model.forecast(history, future)
            origins = self.history.origins(indices)
            if not np.isfinite(values).all():
                window = int((~np.isfinite(values)).any((1, 2)).argmax())
                raise PredictError(f"{self.model.path}: the forecast after {iso(origins[window])} is not finite, though its inputs are")
            times, outcome = self.history.target_times(indices), self.history.outcome(indices)
            yield Forecasts(origins, times, values, self.history.last_close(indices), outcome)

    def _check_inputs(self, indices: np.ndarray, history: np.ndarray, future: np.ndarray) -> None:
        """Raise on the first value that is not finite, with its column and time."""
        from tftq.data.files import iso

        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(history.sum() + future.sum()):  # much faster than looking at each value; finite only where all values are
                return
        parts = ((history, self.history.inputs.history, 1 - history.shape[1]), (future, self.history.inputs.future, 1))
        for values, columns, first in parts:
            for window, row, column in np.argwhere(~np.isfinite(values)).tolist():
                time = int(self.history.origins(indices)[window]) + (first + row) * self.history.step
                name = columns[column].name
                raise PredictError(f"{self.history.recipe.path}: column {name!r} is not finite at {iso(time)}; look at the values there")


def predict(
    model: Path | str,
    data: Path | str,
    *,
    newest: bool = False,
    format: Format | None = None,
    overrides: Sequence[str] = (),
    threads: int = 0,
) -> Prediction:
    """Open a model and read a file of data that it is to forecast.

    Args:
        model: an exported .onnx file, a folder of models, or the folder of a run; of a folder the first format of `PREFERRED` is taken.
        data: a parquet or CSV file, bars or a table as the model was trained on.
        newest: forecast only the newest window; a parquet file is then read from its end as far as needed.
        format: which of a folder's formats to take.
        overrides: `key=value` each for what differs from the data of training, such as `data.symbol=ESH4`.
        threads: threads within an operator; 0 leaves the number to the runtime.

    Returns:
        The windows to forecast; its `batches` forecasts them.

    Raises:
        RecipeError: an override that is not allowed.
        PredictError: a model that cannot serve, or data with other columns.
        DataError: data that cannot be used.
    """
    served = ServedModel(find_model(Path(model), format), threads=threads)

    from tftq.data.history import read_history
    from tftq.recipe.load import data_recipe

    recipe = data_recipe({**served.metadata.data_options, "path": str(Path(data).resolve())}, overrides, CHANGEABLE)
    history = read_history(recipe, served.origin.step_ns, newest=newest).without(served.metadata.left_out)
    trim_heap()
    for role in ("history", "future", "static"):
        expected = served.metadata.inputs.get(role, ())
        made = tuple(InputColumn(column.name, column.role, column.categories) for column in getattr(history.inputs, role))
        if made != expected:
            raise PredictError(f"{served.path}: expects other {role} columns than this tftq makes ({_differences(expected, made)})")
    trained_on = served.origin.data.get("symbol")
    if recipe.kind == "bars" and recipe.symbol != trained_on:
        history.notes.append(
            f"the model was trained on {trained_on or 'all contracts of its file'}, this is {recipe.symbol or 'all of them'}"
        )
    return Prediction(served, history)


def _differences(expected: Sequence[InputColumn], made: Sequence[InputColumn]) -> str:
    names, own = [column.name for column in expected], [column.name for column in made]
    missing, more = [name for name in names if name not in own], [name for name in own if name not in names]
    parts = [f"{title} {', '.join(some[:5])}" for title, some in (("missing:", missing), ("not expected:", more)) if some]
    return f"{len(names)} needed, {len(own)} found; {'; '.join(parts) or 'the same names in another order, role or number of categories'}"
