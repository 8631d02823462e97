"""The parts of `tftq predict`: accuracy where the outcome is known, the file of forecasts, and the output."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tftq.console import Console
from tftq.data.files import iso
from tftq.evaluate.metrics import ForecastMetrics
from tftq.io import written_whole
from tftq.serve.forecast import Forecasts, Prediction, ServedModel
from tftq.spec.quantiles import quantile_name

ROW_GROUP = 2048  # rows of forecasts that are held before they are written


class Accuracy:
    """Accumulate the quality of forecasts over the windows whose whole horizon has happened; holds sums only.

    Args:
        model: the model that forecasts.
    """

    def __init__(self, model: ServedModel) -> None:
        self.metrics = ForecastMetrics(model.metadata.quantiles, np.ones(model.metadata.horizon))
        self._naive = self._size = 0.0

    def add(self, forecasts: Forecasts) -> None:
        """Add the forecasts whose outcome is known."""
        known, target, naive = forecasts.outcome
        if known.any():
            self.metrics.add(forecasts.values[known], target)
            self._naive += float(np.abs(target.astype(np.float64) - naive).sum())
            self._size += float(np.abs(target.astype(np.float64)).sum())

    def summary(self) -> dict[str, Any] | None:
        """Return q-risk of each quantile (`2·Σ pinball / Σ|target|`), naive's P50 risk, and coverage; None where no outcome is known."""
        if not self.metrics.windows:
            return None
        result = self.metrics.result()
        return {
            "windows": result.windows,
            "q_risk": {str(quantile): risk for quantile, risk in result.q_risk.items()},
            "baseline_q_risk": {"0.5": self._naive / (self._size or result.windows * len(self.metrics.scale))},
            "coverage": result.coverage,
        }


def write_forecasts(batches: Iterable[Forecasts], path: Path, model: ServedModel) -> Iterator[Forecasts]:
    """Write forecasts as they pass through; the file gets its name after the last one.

    Columns: origin (time of the last history row), time (forecast), step, one for each quantile and, for bars, one for each price.

    Args:
        batches: the forecasts.
        path: a parquet file: one row per window and step.
        model: the model that made them.
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
    """Return the document that `--json` prints."""
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
    """Return the last window's forecast, one row per step, with the names of the file's columns."""
    rows = [dict(zip(model.metadata.quantile_names, values, strict=True)) for values in last.values[-1].tolist()]
    if last.prices is not None:
        for row, prices in zip(rows, last.prices[-1].tolist(), strict=True):
            row |= {f"price_{name}": price for name, price in zip(model.metadata.quantile_names, prices, strict=True)}
    return rows


def show(console: Console, prediction: Prediction, last: Forecasts, accuracy: Accuracy, out: Path | None) -> None:
    """Print the last forecast, or where all were written, and the accuracy where the outcome is known."""
    model = prediction.model
    for note in prediction.notes:
        console.print_line(f"  {note}")
    if out is None:
        close = "" if last.last_close is None else f", close {last.last_close[-1]:g}"
        what, values = (model.metadata.target, last.values) if last.prices is None else ("price", last.prices)
        from rich.table import Table  # 8 MB that a process with --json or --out does not need

        table = Table(title=f"{what} after {iso(last.origins[-1])}{close}")
        table.add_column("time")
        for name in model.metadata.quantile_names:
            table.add_column(name, justify="right")
        for time, row in zip(last.times[-1], values[-1], strict=True):
            table.add_row(iso(time), *(f"{value:.6g}" for value in row))
        console.print_table(table)
    else:
        console.print_line(f"{len(prediction)} windows of {model.metadata.horizon} steps forecast into {out}")
    if (quality := accuracy.summary()) is not None:
        risks = ", ".join(f"{quantile_name(float(quantile))} {risk:.4f}" for quantile, risk in quality["q_risk"].items())
        naive = quality["baseline_q_risk"]["0.5"]
        known = f"{quality['windows']} windows whose outcome is known (those trained on prove nothing)"
        line = f"{known}: q-risk {risks} (naive P50 {naive:.4f}), coverage {quality['coverage']:.3f}"
        console.print_line(line)
