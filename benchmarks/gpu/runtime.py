"""Check and measure an exported model in ONNX Runtime's CUDA provider."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.reference import RandomWindows, Size
from tftq.errors import ProviderError
from tftq.export.census import integer_shares, stored_weights
from tftq.export.gate import HALF
from tftq.export.graph import build_forecaster
from tftq.model.tabulate import tabulate
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import LstmStorage, prepared_copy
from tftq.quant.weights import with_rounded_weights
from tftq.report.models import describe_nodes
from tftq.serve.measure import measure
from tftq.serve.session import CPU, CUDA, CUDA_OPTIONS, SEVERITY_ERROR, InferenceSession, SessionOptions, feeds, open_session
from tftq.spec.formats import FORMATS, Format
from tftq.train.device import gpu_uuid

BATCHES = (1, 32)
ALLOWED = HALF  # of the forecasts' spread, for FP32 too: the provider multiplies it in TF32, which has FP16's digits
# What ONNX Runtime leaves to the CPU of a graph that is for a GPU: a few numbers, from the batch size to the shape of the tables' operands.
SHAPE_ARITHMETIC, FEW = {"Shape", "Squeeze", "Unsqueeze", "Mul", "Reshape", "Concat"}, 12
INT8_SHARE = 0.98  # of the weights outside the LSTM


def runtime_row(size: Size, kind: Format, lstm: LstmStorage, device: torch.device) -> dict[str, Any]:
    """Export a model from the device and run it there.

    Args:
        size: of the model and its windows; its weights are random.
        kind: fp32, fp16, fp16_int8 or int8_ptq.
        lstm: how the LSTM's weights are stored, where others are INT8.
        device: a GPU, the first.

    Returns:
        Its distance from torch as a share of the forecasts' spread; which providers computed its nodes; for INT8 weights, which share
        of them the optimised graph still stores so; and for each batch size, of a session in a process of its own, latency, copies from
        and to the host included, and what it occupies on the GPU, None where it is not known; or `skipped`, the reason why there is none.
        A model for a GPU passed where it is near enough and no more than shapes were computed elsewhere, any other where it is near enough.
    """
    windows = RandomWindows(size, 2 * max(BATCHES))
    model = tabulate(size.model(size.recipe("none", "fp32", 1)).to(device))[0]
    batch = windows.batch(range(max(BATCHES)))
    reference = model
    if FORMATS[kind].stores_integers:
        model = prepared_copy(model, lstm=lstm)
        calibrate(model, [windows.batch(range(len(windows))).to(device)])
        reference = model if FORMATS[kind].multiplies_integers else with_rounded_weights(model)
    with torch.no_grad():
        expected = reference.eval()(*batch.to(device).inputs).cpu()

    with tempfile.TemporaryDirectory() as folder:
        path, optimised = Path(folder) / "model.onnx", Path(folder) / "optimised.onnx"
        path.write_bytes(build_forecaster(model, kind, "points"))
        row: dict[str, Any] = {"format": kind, "lstm": lstm, "file_bytes": path.stat().st_size}
        try:
            session = open_session(path, cuda=True)
            costs = {count: measure(path, threads=2, batch=count, gpu=gpu_uuid(device)) for count in BATCHES}
        except ProviderError as error:
            return {**row, "skipped": str(error)}
        found = torch.from_numpy(session.run(["forecast"], feeds(session, batch.inputs))[0])
        distance = float((found - expected).abs().max() / (expected.max() - expected.min()))
        nodes = costs[1].nodes
        row |= {"distance_of_spread": distance, "allowed": ALLOWED, "computed_by": describe_nodes(nodes), "nodes": nodes}
        passed = distance <= ALLOWED
        if FORMATS[kind].for_gpu:
            passed &= computed_on_the_gpu(nodes)
        if FORMATS[kind].weight_only:
            row["int8_share_optimised"] = _optimised_share(path, optimised)
            passed &= row["int8_share_optimised"] >= INT8_SHARE
    for count, one in costs.items():
        row[f"batch_{count}_latency_ms"] = one.cost["latency_ms"]
        row[f"batch_{count}_device_bytes"] = one.cost["device_bytes"]
    first = costs[1].cost
    return {**row, "context_bytes": first["context_bytes"], "device_bytes_are": first["device_bytes_are"], "passed": bool(passed)}


def computed_on_the_gpu(nodes: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether everything except arithmetic on shapes is computed there, with no copies from or to the host in between."""
    elsewhere = nodes.get(CPU, {})
    copies = [operator for counts in nodes.values() for operator in counts if operator.startswith("Memcpy")]
    return CUDA in nodes and not copies and elsewhere.keys() <= SHAPE_ARITHMETIC and sum(elsewhere.values()) <= FEW


def _optimised_share(path: Path, optimised: Path) -> float:
    """The share of INT8 among the weights outside the LSTM, in the graph as it is optimised for the GPU."""
    options = SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    options.optimized_model_filepath = str(optimised)
    InferenceSession(path, options, providers=[(CUDA, CUDA_OPTIONS), CPU])
    return integer_shares(stored_weights(optimised))["integer_share_outside_lstm"]
