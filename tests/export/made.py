"""Exports that take seconds each, made once for all tests and only where one asks for them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch

from tests.model.small import column_scaling, small_model
from tests.quant.small import calibrated, small_table
from tests.runs import keep_operators_of_the_exporter
from tftq.data.scaling import Scaling, TargetScaling
from tftq.export.graph import build_forecaster
from tftq.model.tabulate import tabulate
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.quant.weights import with_rounded_weights
from tftq.spec.formats import Format
from tftq.spec.inputs import Column, Inputs
from tftq.spec.metadata import Origin

KEPT = ("attention.*", "history_selection.curves", "lstm_skip", "encoder")
ORIGIN = Origin(recipe="small", recipe_hash="abc", data={"kind": "table"}, step_ns=60_000_000_000, trained_until_ns=7)


@dataclass(frozen=True)
class Made:
    """An untrained model that computes what the file should, and the file."""

    path: Path
    model: TemporalFusionTransformer
    kind: Format

    @property
    def graph(self) -> onnx.GraphProto:
        return onnx.load(self.path).graph

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Those of the graph and of its loops."""
        return nodes_of(self.graph)


Make = Callable[[str], Made]


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.node, *(node for part in inner for node in nodes_of(part))]


def table_225() -> TemporalFusionTransformer:
    """A model of the size that a small card trains: 225 history columns, 11 of them known ahead."""
    columns = (*(Column(f"o{i}", "observed") for i in range(214)), *(Column(f"k{i}", "known") for i in range(11)))
    inputs = Inputs(columns, lookback=60, horizon=10)
    target = TargetScaling(center=np.zeros(10, np.float32), scale=np.ones(10, np.float32))
    torch.manual_seed(0)
    architecture = Architecture(64, 4, 1, 0.1, (0.1, 0.5, 0.9), "knots", 32)
    return tabulate(TemporalFusionTransformer(inputs, Scaling(column_scaling(inputs.history), None), target, architecture))[0]


def make_exports(folder: Path) -> Make:
    """The exports by name: with static columns and without, of both storages of the LSTM, from every form."""
    keep_operators_of_the_exporter()
    small = cache(lambda: tabulate(small_model())[0])
    folded = cache(lambda: tabulate(small_model("folded", static=False, lstm_layers=1))[0])
    large = cache(table_225)
    models: dict[str, tuple[Format, Callable[[], TemporalFusionTransformer]]] = {
        "small fp32": ("fp32", small),
        "small fp16": ("fp16", small),
        "fp16_int8": ("fp16_int8", lambda: calibrated(small_table(static=False, lstm_layers=1), "int8")),
        "fp16_int8, lstm fp16": ("fp16_int8", lambda: calibrated(small_table(static=False, lstm_layers=1), "fp32")),
        "small int8": ("int8_ptq", lambda: calibrated(small(), "int8")),
        "small int8, lstm dynamic": ("int8_ptq", lambda: calibrated(small(), "dynamic")),
        "small int8, some kept": (
            "int8_ptq",
            lambda: calibrated(tabulate(small_model(static=False, lstm_layers=1))[0], "int8", keep_float=KEPT),
        ),
        "folded int8": ("int8_ptq", lambda: calibrated(folded(), "int8")),
        "paper int8": ("int8_qat", lambda: calibrated(tabulate(small_model("paper", static=False, lstm_layers=1))[0], "fp32")),
        "small int4": ("int4_ptq", lambda: calibrated(small(), "int8", weights="int4")),
        "folded int4, lstm fp32": ("int4_qat", lambda: calibrated(folded(), "fp32", weights="int4")),
        "large int4": ("int4_ptq", lambda: calibrated(large(), "int8", weights="int4", windows=8)),
        "large fp32": ("fp32", large),
        "large int8": ("int8_ptq", lambda: calibrated(large(), "int8", windows=8)),
        "large int8, lstm fp32": ("int8_ptq", lambda: calibrated(large(), "fp32", windows=8)),
    }

    @cache
    def made(name: str) -> Made:
        kind, model_of = models[name]
        model = model_of().eval()
        path = folder / f"{name}.onnx"
        path.write_bytes(build_forecaster(model, kind, "points", ORIGIN))
        return Made(path, with_rounded_weights(model) if kind == "fp16_int8" else model, kind)

    return made
