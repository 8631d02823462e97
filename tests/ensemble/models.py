"""Tiny hand-written members whose answers depend on every value that they are fed, and recipes of ensembles of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.data.helpers import MINUTE
from tests.serving import described, origin
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS
from tftq.io import sha256
from tftq.spec.metadata import METADATA_KEY, AgentMetadata, ForecasterMetadata, HalfMetadata, InputColumn, Metadata, parse_metadata

LEVELS = (0.1, 0.5, 0.9)
ALL = (*BAR_COLUMNS, *CLOCK_COLUMNS)
MIB = 2**20
Fault = Literal["nan", "raise"]


def forecaster(
    path: Path,
    columns: Sequence[str] = ALL,
    *,
    lookback: int = 8,
    horizon: int = 3,
    warmup: int = 5,
    fault: Fault | None = None,
    planned: int = 2 * MIB,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write a forecaster: a centre of all it sees, and bands around it.

    Args:
        path: the file; what it was measured to take is noted beside it.
        columns: of its history, in order.
        lookback, horizon, warmup: see `tftq.ensemble.interface.Interface`.
        fault: at bars that close above their open it gives NaN, or raises.
        planned: bytes that it was measured to take.
        seed: of its weights; equal seeds give the same function of named columns.
        changes: of where the file says that it comes from, fields of `Origin`.
    """
    by_name = {name: np.random.default_rng([seed, index]).normal(size=(lookback, 1)) for index, name in enumerate(ALL)}
    weight = np.stack([by_name[name] for name in columns], axis=1).reshape(-1, 1) / 30  # [lookback · columns, 1]
    ahead = np.random.default_rng(seed).normal(size=(horizon * len(CLOCK_COLUMNS), 1)) / 30
    bands = np.tile([-0.5, 0.0, 0.5], horizon) * 1e-3
    constants = {
        "w": weight.astype(np.float32),
        "v": ahead.astype(np.float32),
        "bands": bands.astype(np.float32),
        "size": np.array(1e-3, np.float32),
        "flat": np.array([0, -1]),
        "shape": np.array([0, horizon, 3]),
    }
    node = helper.make_node
    nodes = [
        node("Reshape", ["history", "flat"], ["h"]),
        node("Reshape", ["future", "flat"], ["f"]),
        node("MatMul", ["h", "w"], ["hw"]),
        node("MatMul", ["f", "v"], ["fv"]),
        node("Add", ["hw", "fv"], ["sum"]),
        node("Tanh", ["sum"], ["centre"]),
        node("Mul", ["centre", "size"], ["small"]),
        node("Add", ["small", "bands"], ["rows"]),
        node("Reshape", ["rows", "shape"], ["forecast" if fault is None else "good"]),
    ]
    if fault is not None:
        constants |= {"last": np.array(lookback - 1), "body": np.array(list(columns).index("body")), "zero": np.zeros(1, np.float32)}
        nodes += [
            node("Gather", ["history", "last"], ["row"], axis=1),  # [batch, columns]
            node("Gather", ["row", "body"], ["rise"], axis=1),  # [batch]
        ]
        nodes += (
            [
                node("Neg", ["rise"], ["fall"]),
                node("Sqrt", ["fall"], ["root"]),  # NaN where it rose
                node("Mul", ["root", "zero"], ["nothing"]),
            ]
            if fault == "nan"
            else [
                node("Greater", ["rise", "zero"], ["rose"]),
                node("Cast", ["rose"], ["place"], to=TensorProto.INT64),
                node("Gather", ["zero", "place"], ["nothing"]),  # beyond its end where it rose
            ]
        )
        nodes.append(node("Add", ["good", "nothing"], ["forecast"]))
    shapes = {"history": (lookback, len(columns)), "future": (horizon, len(CLOCK_COLUMNS))}
    metadata = ForecasterMetadata(
        model="tft",
        format="fp32",
        oldest_runtime="1.18",
        lookback=lookback,
        inputs={
            "history": tuple(InputColumn(name, "known" if name in CLOCK_COLUMNS else "observed") for name in columns),
            "future": described(CLOCK_COLUMNS, "known"),
        },
        versions={},
        origin=replace(origin(MINUTE, kind="bars", warmup=warmup), **changes),
        horizon=horizon,
        quantiles=LEVELS,
        target="log return",
    )
    return write_model(path, nodes, constants, shapes, {"forecast": (horizon, 3)}, metadata, planned)


def pair(folder: Path, *, lookback: int = 8, planned: int = 2 * MIB, **options: Any) -> Path:
    """Write a forecaster as a streaming pair, beside the one in one piece, fp32.onnx: a bar is selected as it is.

    Args:
        folder: where to.
        lookback, planned, options: see `forecaster`.
    """
    whole = onnx.load(forecaster(folder / "fp32.onnx", lookback=lookback, planned=planned, **options))
    metadata = parse_metadata(whole.metadata_props[0].value, folder)
    assert isinstance(metadata, ForecasterMetadata)
    common = {"weights": "fp32", "pair": f"{lookback} {options}", "hidden": len(ALL), "states": 0}
    names = {"history": "selected"}
    for node in whole.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    whole.graph.input[0].name = "selected"
    whole.metadata_props[0].value = HalfMetadata.of(metadata, part="forecast", partner="step.onnx", **common).to_json()
    onnx.save(whole, folder / "forecast.onnx")
    selecting = [helper.make_node("Identity", ["history"], ["selected"])]
    step = HalfMetadata.of(metadata, part="step", partner="forecast.onnx", **common)
    write_model(folder / "step.onnx", selecting, {}, {"history": (len(ALL),)}, {"selected": (len(ALL),)}, step, None)
    write_proof(folder / "stream.export.json", planned, folder / "step.onnx", folder / "forecast.onnx")
    return folder


def agent(path: Path, *, lookback: int = 4, warmup: int = 5, planned: int = MIB, seed: int = 1) -> Path:
    """Write an agent whose scores depend on what it sees and on the position that it holds."""
    random = np.random.default_rng(seed)
    constants = {
        "w": (random.normal(size=(lookback * len(ALL), 3)) / 10).astype(np.float32),
        "u": np.array([[0.3, 0.1, -0.3]], np.float32),
        "flat": np.array([0, -1]),
    }
    node = helper.make_node
    nodes = [
        node("Reshape", ["history", "flat"], ["h"]),
        node("MatMul", ["h", "w"], ["hw"]),
        node("MatMul", ["position", "u"], ["pu"]),
        node("Add", ["hw", "pu"], ["scores"]),
    ]
    metadata = AgentMetadata(
        model="dqn",
        format="fp32",
        oldest_runtime="1.18",
        lookback=lookback,
        inputs={
            "history": described(BAR_COLUMNS, "observed") + described(CLOCK_COLUMNS, "known"),
            "position": (InputColumn("position", "state"),),
        },
        versions={},
        origin=origin(MINUTE, kind="bars", warmup=warmup),
        positions=(-1, 0, 1),
    )
    shapes: dict[str, tuple[int, ...]] = {"history": (lookback, len(ALL)), "position": (1,)}
    return write_model(path, nodes, constants, shapes, {"scores": (3,)}, metadata, planned)


def trio(folder: Path) -> dict[str, Path]:
    """Write two forecasters, one of which looks farther back and ahead, and an agent; path by name."""
    return {
        "near": forecaster(folder / "near.onnx"),
        "far": forecaster(folder / "far.onnx", lookback=12, horizon=4, seed=5),
        "agent": agent(folder / "agent.onnx"),
    }


def write_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    metadata: Metadata | None,
    planned: int | None,
) -> Path:
    """Write a model, what it says of itself, and beside it what it was measured to take; None leaves either out."""

    def tensors(shapes: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]) for name, shape in shapes.items()]

    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "member", tensors(inputs), tensors(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if metadata is not None:
        model.metadata_props.add(key=METADATA_KEY, value=metadata.to_json())
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    if planned is not None:
        write_proof(path.with_suffix(".export.json"), planned, path)
    return path


def write_proof(path: Path, planned: float, *models: Path) -> None:
    """Write what models were measured to take."""
    path.write_text(json.dumps({"cost": {"rss_bytes": planned}, "sha256": [sha256(model) for model in models]}))
