"""What a forecast costs in each form, side by side in one run: file, loading, latency and resident memory in ONNX Runtime.

    python benchmarks/inference.py                  # the reference model: hidden 256, 8 heads, 2 LSTM layers, 225 variables, 60 -> 10
    python benchmarks/inference.py --sizes small    # that of recipes/qat_int8.yaml

With neuralforecast installed (pip install 'tftq[peers]'), its TFT at the reference sizes, exported by torch, is the first.
Random weights and inputs: cost does not depend on them. Each figure is the median of several fresh processes of two threads.
Writes benchmarks/results/inference_<sizes>.json.
"""

import argparse
import importlib.util
import io
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import textbook
import torch
from common import write_result
from torch import Tensor

from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.export.graph import build_forecaster
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.model.tft import Architecture, Form, TemporalFusionTransformer
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import LstmStorage, prepared_copy
from tftq.serve.measure import measure
from tftq.spec.formats import Format, WeightStorage
from tftq.spec.inputs import Column, Inputs

QUANTILES = (0.1, 0.5, 0.9)
TARGET = "log return"  # of untrained models
SIZES: dict[str, dict[str, int]] = {
    "reference": {"static": 5, "observed": 210, "known": 10, "hidden": 256, "heads": 8, "lstm_layers": 2, "knots": 64},
    "small": {"static": 0, "observed": 214, "known": 11, "hidden": 64, "heads": 4, "lstm_layers": 1, "knots": 32},
}

LSTMS: dict[LstmStorage, str] = {"fp32": "FP32", "int8": "weights INT8", "dynamic": "computed in INT8"}
QUANTIZED: tuple[tuple[WeightStorage, LstmStorage], ...] = (("int8", "fp32"), ("int8", "int8"), ("int8", "dynamic"), ("int4", "int8"))


def model(sizes: dict[str, int], form: Form) -> TemporalFusionTransformer:
    """An untrained model of these sizes."""
    columns = tuple(Column(f"{role}_{i}", role) for role in ("static", "observed", "known") for i in range(sizes[role]))  # type: ignore[arg-type]
    inputs = Inputs(columns, lookback=60, horizon=10)
    scaling = Scaling(_unit(len(inputs.history)), _unit(len(inputs.static)) if inputs.static else None)
    target = TargetScaling(np.zeros(10, np.float32), np.ones(10, np.float32))
    architecture = Architecture(sizes["hidden"], sizes["heads"], sizes["lstm_layers"], 0.1, QUANTILES, form, sizes["knots"])
    torch.manual_seed(0)
    return TemporalFusionTransformer(inputs, scaling, target, architecture).eval()


def _unit(columns: int) -> ColumnScaling:
    """Columns that are standardised already and stay within four deviations."""
    ones = np.ones(columns, np.float32)
    return ColumnScaling(0 * ones, ones, np.zeros(columns, bool), -4 * ones, 4 * ones)


def neuralforecast_graph(inputs: Inputs) -> bytes:
    """neuralforecast's TFT at the reference sizes, as torch exports it."""
    network = textbook.neuralforecast_model(inputs).eval()

    class ByName(torch.nn.Module):
        """The network with the entries of the dictionary that it takes as arguments."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, insample_y: Tensor, hist_exog: Tensor, futr_exog: Tensor, stat_exog: Tensor) -> Tensor:
            windows = {"insample_y": insample_y, "hist_exog": hist_exog, "futr_exog": futr_exog, "stat_exog": stat_exog}
            forecast: Tensor = self.network(windows)
            return forecast

    shapes = textbook.neuralforecast_shapes(inputs, 1)
    content = io.BytesIO()
    # By tracing: a thousand little networks take the exporter that is torch's default half an hour, and this one seconds.
    torch.onnx.export(
        ByName(),
        tuple(torch.randn(shape) for shape in shapes.values()),
        content,
        input_names=list(shapes),
        output_names=["forecast"],
        dynamic_axes={name: {0: "batch"} for name in (*shapes, "forecast")},
        opset_version=17,
        dynamo=False,
    )
    return content.getvalue()


def graphs(sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """The ONNX files to compare, by name."""
    if sizes is SIZES["reference"]:
        if importlib.util.find_spec("neuralforecast") is None:
            print("neuralforecast: left out, it is not installed (pip install 'tftq[peers]')", file=sys.stderr)
        else:
            yield "neuralforecast, FP32", neuralforecast_graph(model(sizes, "knots").inputs)
    yield "paper, FP32", build_forecaster(model(sizes, "paper"), "fp32", TARGET)
    yield "folded, FP32", build_forecaster(model(sizes, "folded"), "fp32", TARGET)
    table, _ = tabulate(model(sizes, "knots"))
    yield "table, FP32", build_forecaster(table, "fp32", TARGET)
    inputs = {name: torch.randn(shape) for name, shape in table.inputs.shapes(32).items()}
    batch = Batch(inputs["history"], inputs["future"], inputs.get("static"), torch.zeros(32, 10))
    for weights, lstm in QUANTIZED:
        format: Format = "int4_ptq" if weights == "int4" else "int8_ptq"
        prepared = prepared_copy(table, lstm=lstm, weights=weights)
        calibrate(prepared, [batch])
        yield f"table, {weights.upper()}, LSTM {LSTMS[lstm]}", build_forecaster(prepared.eval(), format, TARGET)


def median_cost(path: Path, batch: int, processes: int) -> dict[str, float]:
    """The median cost over several fresh processes."""
    runs = [measure(path, threads=2, batch=batch).cost for _ in range(processes)]
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {
        "load_ms": round(median["load_ms"], 1),
        "latency_ms": round(median["latency_ms"], 2),
        "resident_mb": round(median["rss_bytes"] / 1e6, 1),
        "process_mb": round(median["process_bytes"] / 1e6, 1),
    }


def main() -> None:
    """Build each graph, measure it at batch 1 and 32, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=SIZES, default="reference")
    parser.add_argument("--processes", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, graph in graphs(SIZES[arguments.sizes]):
            path = Path(folder) / "model.onnx"
            path.write_bytes(graph)
            for batch in (1, 32):
                figures = median_cost(path, batch, arguments.processes)
                rows.append({"graph": name, "file_mb": round(len(graph) / 1e6, 2), "batch": batch, **figures})
                print(rows[-1], flush=True)
                write_result(f"inference_{arguments.sizes}", rows)


if __name__ == "__main__":
    main()
