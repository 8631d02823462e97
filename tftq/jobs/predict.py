"""Forecasts of bars or a table as they lie in a file, by an exported model in ONNX Runtime: `tftq predict MODEL DATA`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.table import Table

from tftq.console import Console
from tftq.data.files import iso
from tftq.data.history import History, Outcome, read_history
from tftq.errors import PredictError
from tftq.evaluate.metrics import ForecastMetrics
from tftq.io import written_whole
from tftq.recipe.load import data_recipe
from tftq.recipe.schema import Format
from tftq.serve.find import BATCH_SIZE, CHANGEABLE, find_model
from tftq.serve.session import feeds, open_session, require_runtime
from tftq.spec.metadata import AgentMetadata, HalfMetadata, InputColumn, read_metadata
from tftq.spec.quantiles import quantile_name

ROW_GROUP = 2048  # rows of forecasts that are held before they are written


class ServedModel:
    """An exported model, and what its file says of itself.

    Args:
        path: an .onnx file of a run.

    Raises:
        MetadataError: no ONNX file, or metadata that is damaged.
        PredictError: no file, not a forecaster in one piece, or one that no run made.
        ProviderError: ONNX Runtime is too old for the file.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise PredictError(f"{path}: no such file; give an exported .onnx model or the folder of a run")
        metadata = read_metadata(path)
        if isinstance(metadata, HalfMetadata):
            raise PredictError(f"{path}: one half of a streaming pair, for tftq.serve.stream.Stream; give the model in one piece")
        if isinstance(metadata, AgentMetadata):
            raise PredictError(f"{path}: a policy, which takes positions and forecasts nothing; run it as a member of tftq ensemble")
        if metadata is None or metadata.origin is None:
            raise PredictError(f"{path}: its metadata says nothing of the data it was trained on; export the model again with tftq run")
        require_runtime(path, metadata.oldest_runtime)
        try:
            self.session = open_session(path)
        except Exception as error:  # the runtime's errors have no other base
            raise PredictError(f"{path}: no model that ONNX Runtime can load: {error}") from error
        self.path, self.metadata, self.origin = path, metadata, metadata.origin


class Forecasts(NamedTuple):
    """Forecasts of a batch of windows.

    origins int64 nanoseconds UTC [batch]: the last history row; times int64 [batch, horizon]: what is forecast;
    values float32 [batch, horizon, quantiles] in the target's unit; last_close float64 [batch], None for tables; outcome: of them.
    """

    origins: np.ndarray
    times: np.ndarray
    values: np.ndarray
    last_close: np.ndarray | None
    outcome: Outcome

    @property
    def prices(self) -> np.ndarray | None:
        """What the forecast log returns come to, float64 [batch, horizon, quantiles]; None for tables."""
        return None if self.last_close is None else self.last_close[:, None, None] * np.exp(self.values.astype(np.float64))


class Accuracy:
    """How good forecasts were, of the windows whose whole horizon has happened; holds sums alone.

    Args:
        model: what forecasts.
    """

    def __init__(self, model: ServedModel) -> None:
        self.metrics = ForecastMetrics(model.metadata.quantiles, np.ones(model.metadata.horizon))
        self._naive = self._size = 0.0

    def add(self, forecasts: Forecasts) -> None:
        """Count in those forecasts whose outcome is known."""
        known, target, naive = forecasts.outcome
        if known.any():
            self.metrics.add(forecasts.values[known], target.numpy())
            self._naive += float((target.double() - naive).abs().sum())
            self._size += float(target.double().abs().sum())

    def summary(self) -> dict[str, Any] | None:
        """q-risk of each quantile (`2·Σ pinball / Σ|target|`) beside naive's P50, and coverage; None where nothing has happened yet."""
        if not self.metrics.windows:
            return None
        found = self.metrics.result()
        return {
            "windows": found.windows,
            "q_risk": {str(quantile): risk for quantile, risk in found.q_risk.items()},
            "baseline_q_risk": {"0.5": self._naive / (self._size or found.windows * len(self.metrics.scale))},
            "coverage": found.coverage,
        }


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
        """What a user should know of how the data was read."""
        return self.history.notes

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[Forecasts]:
        """Forecast window by window; nothing of a batch is kept.

        Args:
            batch_size: windows to one run of the model.

        Yields:
            The forecasts of the windows in order.

        Raises:
            PredictError: an input or a forecast that is not finite.
        """
        for indices in torch.arange(len(self.history)).split(batch_size):
            inputs = self.history.batch(indices)
            self._check_inputs(indices, *inputs)
            values = np.asarray(self.model.session.run(["forecast"], feeds(self.model.session, inputs))[0], np.float32)
            origins = self.history.origins(indices)
            if not np.isfinite(values).all():
                window = int((~np.isfinite(values)).any((1, 2)).argmax())
                raise PredictError(f"{self.model.path}: the forecast after {iso(origins[window])} is not finite, though its inputs are")
            times, outcome = self.history.target_times(indices), self.history.outcome(indices)
            yield Forecasts(origins, times, values, self.history.last_close(indices), outcome)

    def _check_inputs(self, indices: torch.Tensor, history: torch.Tensor, future: torch.Tensor) -> None:
        """Name the first value that is not finite."""
        if bool((history.sum() + future.sum()).isfinite()):  # a sum is much faster to look at, and finite only where all its values are
            return
        wide = ((history, self.history.inputs.history, 1 - history.shape[1]), (future, self.history.inputs.future, 1))
        for values, columns, first in wide:
            for window, row, column in (~values.isfinite()).nonzero().tolist():
                time = int(self.history.origins(indices)[window]) + (first + row) * self.history.step
                name = columns[column].name
                raise PredictError(f"{self.history.recipe.path}: column {name!r} is not finite at {iso(time)}; look at the values there")


def predict(
    model: Path | str, data: Path | str, *, newest: bool = False, kind: Format | None = None, overrides: Sequence[str] = ()
) -> Prediction:
    """Prepare the forecasts of a file of data.

    Args:
        model: an exported .onnx file, a folder of them, or the folder of a run, of which the first of `PREFERRED` is taken.
        data: a parquet or CSV file of the kind that the model was trained on.
        newest: forecast the newest window alone; a parquet file is then read from its end as far as that needs.
        kind: which of a folder's formats to take.
        overrides: `key=value` each for what differs from the data of training, as `data.symbol=ESH4`.

    Returns:
        The forecasts to be made; `batches` makes them.

    Raises:
        RecipeError: an override that cannot be taken.
        PredictError: a model that cannot serve, or data with other columns.
        DataError: data that cannot be used as it lies.
    """
    served = ServedModel(find_model(Path(model), kind))
    recipe = data_recipe({**served.metadata.data_options, "path": str(Path(data).resolve())}, overrides, CHANGEABLE)
    history = read_history(recipe, served.origin.step_ns, newest=newest).without(served.metadata.left_out)
    for role in ("history", "future", "static"):
        wanted = served.metadata.inputs.get(role, ())
        found = tuple(InputColumn(column.name, column.role, column.categories) for column in getattr(history.inputs, role))
        if found != wanted:
            raise PredictError(f"{served.path}: wants other {role} columns than this tftq makes ({_differences(wanted, found)})")
    trained_on = served.origin.data.get("symbol")
    if recipe.kind == "bars" and recipe.symbol != trained_on:
        history.notes.append(
            f"the model was trained on {trained_on or 'all contracts of its file'}, this is {recipe.symbol or 'all of them'}"
        )
    return Prediction(served, history)


def _differences(wanted: Sequence[InputColumn], found: Sequence[InputColumn]) -> str:
    names, own = [column.name for column in wanted], [column.name for column in found]
    missing, more = [name for name in names if name not in own], [name for name in own if name not in names]
    parts = [f"{title} {', '.join(some[:5])}" for title, some in (("missing:", missing), ("not wanted:", more)) if some]
    return f"{len(names)} needed, {len(own)} found; {'; '.join(parts) or 'the same names in another order, role or number of categories'}"


def write_forecasts(batches: Iterable[Forecasts], path: Path, model: ServedModel) -> Iterator[Forecasts]:
    """Pass forecasts through and write them on the way; the file has its name once the last of them was taken.

    Columns: origin (time of the last history row), time (that is forecast), step, one for each quantile and, for bars, for its price.

    Args:
        batches: the forecasts.
        path: a parquet file, of a row for each window and step.
        model: what made them.
    """
    names = model.metadata.quantile_names
    time = pa.timestamp("ns", tz="UTC")
    prices = [f"price_{name}" for name in names] if model.origin.of_bars else []
    fields = {"origin": time, "time": time, "step": pa.int32()} | dict.fromkeys(names, pa.float32()) | dict.fromkeys(prices, pa.float64())
    schema = pa.schema(fields.items())
    with written_whole(path) as part, pq.ParquetWriter(part, schema) as writer:
        held: list[pa.Table] = []
        for forecasts in batches:
            held.append(_as_table(forecasts, schema))
            if sum(map(len, held)) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(held))
                held.clear()
            yield forecasts
        if held:
            writer.write_table(pa.concat_tables(held))


def _as_table(forecasts: Forecasts, schema: pa.Schema) -> pa.Table:
    batch, horizon, _ = forecasts.values.shape
    step = np.tile(np.arange(1, horizon + 1), batch)
    quantiles = [values for values in (forecasts.values, forecasts.prices) if values is not None]  # [batch, horizon, quantiles] each
    columns = [forecasts.origins.repeat(horizon), forecasts.times.reshape(-1), step]
    columns += [column for values in quantiles for column in values.reshape(batch * horizon, -1).T]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def document(prediction: Prediction, last: Forecasts, accuracy: Accuracy, out: Path | None) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": str(prediction.model.path),
        "data": str(prediction.history.recipe.path),
        "notes": prediction.notes,
        "target": prediction.model.metadata.target,
        "windows": len(prediction),
        "out": None if out is None else str(out),
        "accuracy": accuracy.summary(),
        "last": {
            "origin": iso(last.origins[-1]),
            **({} if last.last_close is None else {"close": float(last.last_close[-1])}),
            "steps": [
                {"time": iso(time), **{name: float(value) for name, value in values.items()}}
                for time, values in zip(last.times[-1], _rows(prediction.model, last), strict=True)
            ],
        },
    }


def _rows(model: ServedModel, last: Forecasts) -> list[dict[str, float]]:
    """The last window's forecast, a row a step, by the names of the file's columns."""
    rows = [dict(zip(model.metadata.quantile_names, values, strict=True)) for values in last.values[-1].tolist()]
    if last.prices is not None:
        for row, prices in zip(rows, last.prices[-1].tolist(), strict=True):
            row |= {f"price_{name}": price for name, price in zip(model.metadata.quantile_names, prices, strict=True)}
    return rows


def show(console: Console, prediction: Prediction, last: Forecasts, accuracy: Accuracy, out: Path | None) -> None:
    """Print the last forecast, or where all were written, and how good those were whose outcome is known."""
    model = prediction.model
    for note in prediction.notes:
        console.print_line(f"  {note}")
    if out is None:
        close = "" if last.last_close is None else f", close {last.last_close[-1]:g}"
        what, values = (model.metadata.target, last.values) if last.prices is None else ("price", last.prices)
        table = Table(title=f"{what} after {iso(last.origins[-1])}{close}")
        table.add_column("time")
        for name in model.metadata.quantile_names:
            table.add_column(name, justify="right")
        for time, row in zip(last.times[-1], values[-1], strict=True):
            table.add_row(iso(time), *(f"{value:.6g}" for value in row))
        console.print_table(table)
    else:
        console.print_line(f"{len(prediction)} windows of {model.metadata.horizon} steps forecast into {out}")
    if (found := accuracy.summary()) is not None:
        risks = ", ".join(f"{quantile_name(float(quantile))} {risk:.4f}" for quantile, risk in found["q_risk"].items())
        naive = found["baseline_q_risk"]["0.5"]
        known = f"{found['windows']} windows whose outcome is known (those trained on prove nothing)"
        line = f"{known}: q-risk {risks} (naive P50 {naive:.4f}), coverage {found['coverage']:.3f}"
        console.print_line(line)
