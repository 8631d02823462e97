"""Hand-written ONNX models whose forecast is a weighted sum of every value of the inputs, with the metadata of a run's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.data.helpers import MINUTE
from tftq.data.bars import BAR_COLUMNS, CLOCK_COLUMNS
from tftq.serve.forecast import Forecasts, Prediction
from tftq.spec.metadata import METADATA_KEY, ForecasterMetadata, InputColumn, Origin

QUANTILES = (0.1, 0.5, 0.9)


class Linear:
    """What a model computes: `tanh(history · weights + future · weights)`, so that a value that is wrong anywhere shows.

    Args:
        lookback: rows of the history.
        horizon: steps that are forecast.
        history: columns of it.
        future: columns known over the horizon.
    """

    def __init__(self, lookback: int, horizon: int, history: int, future: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.lookback, self.horizon, self.columns = lookback, horizon, (history, future)
        self.of_history = random.normal(size=(lookback * history, horizon * 3)).astype(np.float32) / (lookback * history)
        self.of_future = random.normal(size=(horizon * future, horizon * 3)).astype(np.float32) / (horizon * future)

    def __call__(self, history: Any, future: Any) -> np.ndarray:
        """Forecasts [batch, horizon, 3] of inputs [batch, lookback, history] and [batch, horizon, future]."""
        history, future = np.asarray(history), np.asarray(future)
        sums = history.reshape(len(history), -1) @ self.of_history + future.reshape(len(future), -1) @ self.of_future
        return np.tanh(sums).reshape(-1, self.horizon, 3)

    def write(self, path: Path, metadata: ForecasterMetadata) -> Path:
        """Write the ONNX file of it, which says this of itself."""
        constants = {"h": self.of_history, "f": self.of_future, "flat": np.array([0, -1]), "shape": np.array([0, self.horizon, 3])}
        nodes = [
            helper.make_node("Reshape", ["history", "flat"], ["flat_history"]),
            helper.make_node("Reshape", ["future", "flat"], ["flat_future"]),
            helper.make_node("MatMul", ["flat_history", "h"], ["from_history"]),
            helper.make_node("MatMul", ["flat_future", "f"], ["from_future"]),
            helper.make_node("Add", ["from_history", "from_future"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["bounded"]),
            helper.make_node("Reshape", ["bounded", "shape"], ["forecast"]),
        ]
        shapes = {"history": (self.lookback, self.columns[0]), "future": (self.horizon, self.columns[1]), "forecast": (self.horizon, 3)}
        tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]) for name, shape in shapes.items()}
        initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        graph = helper.make_graph(nodes, "linear", [tensors["history"], tensors["future"]], [tensors["forecast"]], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        model.metadata_props.add(key=METADATA_KEY, value=metadata.to_json())
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def described(names: Iterable[str], role: str) -> tuple[InputColumn, ...]:
    """Columns of real numbers, as a file describes them."""
    return tuple(InputColumn(name, role) for name in names)


def origin(step: int, **data: Any) -> Origin:
    """Of a run that made nothing but its name."""
    return Origin(recipe="by_hand", recipe_hash="abc", data=data, step_ns=step, trained_until_ns=0)


def bars_model(path: Path, lookback: int = 60, horizon: int = 10, **data: Any) -> Linear:
    """Write a model of bars; `data` are options of the recipe that it was trained by."""
    model = Linear(lookback, horizon, len(BAR_COLUMNS) + len(CLOCK_COLUMNS), len(CLOCK_COLUMNS))
    known = described(CLOCK_COLUMNS, "known")
    metadata = ForecasterMetadata(
        model="tft",
        format="fp32",
        oldest_runtime="1.18",
        lookback=lookback,
        inputs={"history": described(BAR_COLUMNS, "observed") + known, "future": known},
        versions={},
        origin=origin(MINUTE, kind="bars", **data),
        horizon=horizon,
        quantiles=QUANTILES,
        target="log return",
    )
    model.write(path, metadata)
    return model


def table_model(path: Path, known: tuple[str, ...] = ("x",), calendar: tuple[str, ...] = (), **data: Any) -> Linear:
    """Write a model of the tables of `tests.data.helpers.table_columns`, lookback 4 and horizon 2."""
    clock = tuple(f"{cycle}_{part}" for cycle in calendar for part in ("sin", "cos"))
    model = Linear(4, 2, 1 + len(known) + len(clock), len(known) + len(clock))
    ahead = described(known + clock, "known")
    options = {"kind": "table", "time": "time", "target": "y", "known": known, "calendar": calendar, "season": 3}
    metadata = ForecasterMetadata(
        model="tft",
        format="fp32",
        oldest_runtime="1.18",
        lookback=4,
        inputs={"history": described(("y",), "observed") + ahead, "future": ahead},
        versions={},
        origin=origin(60 * MINUTE, **{**options, **data}),
        horizon=2,
        quantiles=QUANTILES,
        target="y",
    )
    model.write(path, metadata)
    return model


def all_of(prediction: Prediction, batch_size: int = 32) -> Forecasts:
    """Every forecast in one batch."""
    batches = list(prediction.batches(batch_size))
    origins, times, values = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("origins", "times", "values"))
    close = None if batches[0].last_close is None else np.concatenate([batch.last_close for batch in batches])
    return Forecasts(origins, times, values, close, batches[-1].outcome)
