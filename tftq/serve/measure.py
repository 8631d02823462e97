"""Measure latency and memory of models in a fresh process: `python -m tftq.serve.measure MODEL [MODEL ...]`.

The process imports ONNX Runtime and NumPy alone (NVML only to measure on a GPU), so that its memory is the session's.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tftq.errors import GateError, ProviderError
from tftq.serve.resident import resident_bytes
from tftq.serve.session import InferenceSession, feeds, open_session
from tftq.serve.stream import window_bytes
from tftq.spec.metadata import HalfMetadata, read_metadata

WARM_UP = 3  # runs before those that are timed
Shapes = Mapping[str, Sequence[int]]  # input -> its sizes without the batch, where the file leaves them open


@dataclass(frozen=True)
class Measurement:
    """Cost and placement of a model's session in a fresh process.

    Attributes:
        cost: see `measure_here`.
        nodes: see `count_nodes`.
    """

    cost: dict[str, Any]
    nodes: dict[str, dict[str, int]]


def measure(*paths: Path, threads: int, batch: int = 1, gpu: str | None = None, shapes: Shapes | None = None) -> Measurement:
    """Measure latency and resident memory of a model, or of several side by side, in a fresh process.

    Args:
        paths: the models.
        threads: threads within an operator.
        batch: windows per run.
        gpu: UUID of the first GPU, to run there; None for the CPU.
        shapes: sizes of inputs that the files leave open.

    Raises:
        GateError: the process failed.
        ProviderError: ONNX Runtime cannot compute on the GPU.
    """
    command = [sys.executable, "-m", "tftq.serve.measure", *map(str, paths), "--threads", str(threads), "--batch", str(batch)]
    command += [] if shapes is None else ["--shapes", json.dumps(shapes)]
    done = subprocess.run(command + ([] if gpu is None else ["--gpu", gpu]), capture_output=True, text=True, check=False)
    if done.returncode:
        names = ", ".join(path.name for path in paths)
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GateError(f"{names}: measuring it in a fresh process failed with exit status {done.returncode}: {last}")
    document: dict[str, Any] = json.loads(done.stdout)
    if "skipped" in document:
        raise ProviderError(document["skipped"])
    return Measurement(**document)


def measure_pair(step: Path, forecast: Path, *, threads: int) -> Measurement:
    """Measure a streaming pair as `measure` does, including the window that a `Stream` keeps.

    Args:
        step, forecast: the halves.
        threads: threads within an operator.

    Raises:
        GateError: the process failed.
    """
    sessions = measure(step, forecast, threads=threads)
    metadata = read_metadata(step)
    assert isinstance(metadata, HalfMetadata)
    return replace(sessions, cost={**sessions.cost, "rss_bytes": sessions.cost["rss_bytes"] + window_bytes(metadata)})


def measure_here(
    *paths: Path, batch: int, threads: int, repeats: int, gpu: str | None = None, shapes: Shapes | None = None
) -> dict[str, Any]:
    """Load models side by side in this process and run them on zeros, one after the other.

    Args:
        paths: the models.
        batch: windows per run.
        threads: threads within an operator.
        repeats: timed runs, after `WARM_UP` untimed ones.
        gpu: UUID of the first GPU, to run there; None for the CPU.
        shapes: sizes of inputs that the files leave open.

    Returns:
        load_ms, latency_ms (median over runs of all models; copies to and from the host included), rss_bytes (growth of the process by
        the sessions and their runs) and process_bytes (the whole process). On a GPU also device_bytes (memory of the sessions there),
        context_bytes (memory of CUDA itself), both None where the driver does not report them, and device_bytes_are (how they were read).

    Raises:
        ProviderError: there is no GPU that ONNX Runtime can compute on.
    """
    occupied, read_as = (None, "") if gpu is None else _start_cuda(paths[0], gpu)
    context = None if occupied is None else occupied()
    before = resident_bytes()
    start = time.perf_counter()
    sessions = [open_session(path, threads=threads, cuda=gpu is not None, spinning=len(paths) == 1) for path in paths]
    load = time.perf_counter() - start
    fed = [_zeros(session, batch, shapes) for session in sessions]
    seconds = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        for session, inputs in zip(sessions, fed, strict=True):
            session.run(None, inputs)
        seconds.append(time.perf_counter() - start)
    after = resident_bytes()
    on_device: dict[str, Any] = {}
    if occupied is not None:
        now = occupied()
        grown = None if now is None or context is None else now - context
        on_device = {"device_bytes": grown, "context_bytes": context, "device_bytes_are": read_as}
    return {
        "load_ms": 1e3 * load,
        "latency_ms": 1e3 * statistics.median(seconds[WARM_UP:]),
        "rss_bytes": after - before,
        "process_bytes": after,
        **on_device,
    }


def count_nodes(*paths: Path, threads: int, cuda: bool = False, shapes: Shapes | None = None) -> dict[str, dict[str, int]]:
    """Count the nodes of the optimised graphs: execution provider -> operator -> nodes; those of a loop's body once.

    Args: see `open_session` and `measure`.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            session = open_session(path, threads=threads, cuda=cuda, profile=Path(folder) / "profile")
            session.run(None, _zeros(session, 1, shapes))  # one window: a loop over windows runs once
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                counts[event["args"]["provider"]][event["args"]["op_name"]] += 1
    return {provider: dict(sorted(operators.items())) for provider, operators in sorted(counts.items())}


def _start_cuda(path: Path, gpu: str) -> tuple[Callable[[], int | None], str]:
    """Start CUDA, whose context outlives the session, and choose how to read the memory that this process occupies on a GPU.

    Returns:
        A function that reads the bytes (None where the driver does not report them), and a description of how it reads them.
    """
    import pynvml

    from tftq.serve.nvml import free_bytes_reader, own_bytes_reader

    try:
        own, free = own_bytes_reader(gpu), free_bytes_reader(gpu)
    except pynvml.NVMLError as error:
        open_session(path, cuda=True)
        return lambda: None, f"not reported by the driver: {error}"
    untouched = free()
    open_session(path, cuda=True)
    if own() is None:
        return lambda: untouched - free(), "of all processes"
    return own, "of this process"


def _zeros(session: InferenceSession, batch: int, shapes: Shapes | None) -> dict[str, np.ndarray]:
    given = shapes or {}
    zeros = ((node, np.zeros([batch, *given.get(node.name, node.shape[1:])])) for node in session.get_inputs())
    return feeds(session, [array.reshape(batch, -1) if len(node.shape) == 2 else array for node, array in zeros])


def main() -> None:
    """Print the measurement as one JSON document: cost and nodes, or the reason why it was skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--shapes", type=json.loads, help="of inputs that the files leave open, as JSON: name -> sizes without the batch")
    parser.add_argument("--gpu", help="UUID of the first GPU, to measure there")
    chosen = parser.parse_args()
    document: dict[str, Any]
    try:
        with redirect_stdout(sys.stderr):  # a provider that does not start prints there
            common = {"threads": chosen.threads, "shapes": chosen.shapes}
            cost = measure_here(*chosen.model, batch=chosen.batch, repeats=chosen.repeats, gpu=chosen.gpu, **common)
            document = {"cost": cost, "nodes": count_nodes(*chosen.model, cuda=chosen.gpu is not None, **common)}
    except ProviderError as error:
        document = {"skipped": str(error)}
    except Exception as error:  # the runtime's errors have no common base
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")  # `measure` shows the last line alone
    print(json.dumps(document))


if __name__ == "__main__":
    main()
