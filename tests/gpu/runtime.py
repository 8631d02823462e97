"""What an exported model costs in ONNX Runtime's CUDA provider, where there is one that really works."""

import statistics
import time
from typing import Any

import onnxruntime
import torch

from tests.gpu.reference import RandomWindows, Size
from tftq.export.graph import build_graph
from tftq.export.measure import SEVERITY_ERROR, feeds
from tftq.memory.probe import MemoryProbe
from tftq.model.tabulate import tabulate
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.recipe.schema import Format

PROVIDER = "CUDAExecutionProvider"
BATCHES = (1, 32)
WARM_UP, REPEATS = 5, 30


def runtime_row(size: Size, kind: Format, device: torch.device) -> dict[str, Any]:
    """Export a model from the device and run it there.

    Args:
        size: of the model and its windows; its weights are random.
        kind: fp32, fp16 or int8_ptq.
        device: where the model lies, whose memory is read.

    Returns:
        Latency at each batch size, copies from and to the host included, the GPU memory that the session takes, None where it is not
        known, and its distance from torch as a share of the forecasts' spread; or `skipped`, the reason why there are none.
    """
    windows = RandomWindows(size, 2 * max(BATCHES))
    model = tabulate(size.model(size.recipe("none", "fp32", 1)).to(device))[0]
    batch = windows.batch(range(max(BATCHES)))
    if kind.startswith("int8"):
        model = prepared_copy(model, lstm="int8")
        calibrate(model, [windows.batch(range(len(windows))).to(device)])
    with torch.no_grad():
        expected = model(*batch.to(device).inputs).cpu()
    graph = build_graph(model, {}, half=kind == "fp16")
    row: dict[str, Any] = {"format": kind, "file_bytes": len(graph)}

    probe = MemoryProbe(device)
    before = probe.read().device_free
    session, reason = cuda_session(graph)
    if session is None:
        return {**row, "skipped": reason}
    for count in BATCHES:
        row[f"batch_{count}_latency_ms"] = _latency_ms(session, feeds(session, windows.batch(range(count)).inputs))
    after = probe.read().device_free
    row["device_bytes"] = None if before is None or after is None else before - after
    found = torch.from_numpy(session.run(["forecast"], feeds(session, batch.inputs))[0])
    row["distance_of_spread"] = float((found - expected).abs().max() / (expected.max() - expected.min()))
    return row


def cuda_session(graph: bytes) -> tuple[onnxruntime.InferenceSession | None, str]:
    """A session whose operators run in the CUDA provider, or None and the reason: what the package lists says nothing of the device."""
    package = f"onnxruntime {onnxruntime.__version__}"
    if PROVIDER not in onnxruntime.get_available_providers():
        return None, f"{package} is built without its CUDA provider; install onnxruntime-gpu"
    onnxruntime.preload_dlls()  # cuBLAS and cuDNN lie in packages of their own, where the loader does not look
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    session = onnxruntime.InferenceSession(graph, options, providers=[PROVIDER, "CPUExecutionProvider"])
    if PROVIDER not in session.get_providers():
        return None, f"the CUDA provider of {package} does not start here; it fell back to {', '.join(session.get_providers())}"
    return session, ""


def _latency_ms(session: onnxruntime.InferenceSession, inputs: dict[str, Any]) -> float:
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        start = time.perf_counter()
        session.run(["forecast"], inputs)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[WARM_UP:])
