"""Streaming pairs for the tests of their export and of streams."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from tests.export.made import ORIGIN, Make
from tests.runs import ROOT
from tftq.data.load import load_datasets
from tftq.data.windows import Datasets
from tftq.export.graph import build_forecaster
from tftq.export.pair import ExportedPair, export_pair
from tftq.export.pair_graph import build_pair
from tftq.model.batch import Batch, gather
from tftq.model.tabulate import tabulate
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.recipe.load import load_recipe
from tftq.serve.session import feeds, open_session
from tftq.spec.formats import FORECAST_FILE, STEP_FILE

LSTMS = ["small fp32", "small int8", "small int8, lstm dynamic"]  # the exports of `make`, one for each storage of the LSTM
HALVES = (STEP_FILE, FORECAST_FILE)
SPREAD = 1e-5  # largest distance of the pair from the one-piece model, as a share of the forecasts' spread

MakePair = Callable[[str], dict[str, bytes]]


@dataclass(frozen=True)
class Pair:
    """A small untrained INT8 model of the shipped bars in one piece and in two, and what it was made from."""

    folder: Path
    model: TemporalFusionTransformer
    data: Datasets
    exported: ExportedPair

    @property
    def windows(self) -> Batch:
        """The first windows, each a bar later than the one before."""
        return gather(self.data.train, range(20))


def make_bars_pair(folder: Path) -> Pair:
    """Export the pair of an untrained INT8 model of the shipped bars."""
    data = load_datasets(load_recipe(ROOT / "recipes" / "qat_int8.yaml").data)
    torch.manual_seed(0)
    architecture = Architecture(16, 2, 1, 0.1, (0.1, 0.5, 0.9), "knots", 8)
    table, _ = tabulate(TemporalFusionTransformer(data.train.inputs, data.scaling, data.target_scaling, architecture))
    model = prepared_copy(table, lstm="int8")
    calibrate(model, [gather(data.train, range(0, 600, 20))])
    (folder / "int8_ptq.onnx").write_bytes(build_forecaster(model.eval(), "int8_ptq", "log return", ORIGIN))
    exported = export_pair(model, "int8_ptq", folder / "int8_ptq.onnx", data.validation, data.test, batch_size=16, origin=ORIGIN)
    return Pair(folder, model, data, exported)


def make_pairs(make: Make) -> MakePair:
    """Build the halves of the models of `make` by name, each once."""
    return cache(lambda name: build_pair(make(name).model, "fp32", "points", ORIGIN))


def make_static_pair(make_pair: MakePair, folder: Path) -> Path:
    """Write the pair of the small float model, which has static columns and categories."""
    for name, content in make_pair("small fp32").items():
        (folder / name).write_bytes(content)
    return folder


def in_one_piece(path: Path, batch: Batch) -> np.ndarray:
    """The forecasts of the one-piece model, a window at a time."""
    session = open_session(path)
    windows = zip(*(tensor.split(1) for tensor in batch.inputs), strict=True)
    return np.concatenate([session.run(["forecast"], feeds(session, window))[0] for window in windows])
