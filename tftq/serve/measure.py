"""What sessions of models cost, measured in a process of their own: `python -m tftq.serve.measure MODEL [MODEL ...]`.

Imports nothing but ONNX Runtime, numpy, psutil and NVML, so that the figures are the session's.
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
import onnxruntime
import psutil
import pynvml

from tftq.errors import GateError, ProviderError
from tftq.memory.nvml import free_bytes_reader, own_bytes_reader
from tftq.serve.session import feeds, open_session
from tftq.serve.stream import window_bytes
from tftq.spec.metadata import file_metadata

WARM_UP = 3  # runs that are not timed
Shapes = Mapping[str, Sequence[int]]  # of inputs whose file leaves their dimensions open, by name, without the batch


@dataclass(frozen=True)
class Measured:
    """What a fresh process found of a model's session.

    Attributes:
        cost: see `tftq.serve.measure.measure`.
        nodes: execution provider -> operator -> nodes of the optimised graph that it computes.
    """

    cost: dict[str, Any]
    nodes: dict[str, dict[str, int]]


def measured(*paths: Path, threads: int, batch: int = 1, gpu: str | None = None, shapes: Shapes | None = None) -> Measured:
    """Run a model in a fresh process, or several beside each other in one.

    Args:
        paths: the models.
        threads: threads within an operator.
        batch: windows a run.
        gpu: the UUID of the first GPU, to run it there; None for the CPU.
        shapes: see `tftq.serve.measure.measure`.

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
    found: dict[str, Any] = json.loads(done.stdout)
    if "skipped" in found:
        raise ProviderError(found["skipped"])
    return Measured(**found)


def measured_pair(step: Path, forecast: Path, *, threads: int) -> Measured:
    """As `measured`, of both halves beside each other and of the window that is kept beside them.

    Args:
        step, forecast: the halves.
        threads: threads within an operator.

    Raises:
        GateError: the process failed.
    """
    found = measured(step, forecast, threads=threads)
    return replace(found, cost={**found.cost, "rss_bytes": found.cost["rss_bytes"] + window_bytes(file_metadata(step))})


def measure(*paths: Path, batch: int, threads: int, repeats: int, gpu: str | None = None, shapes: Shapes | None = None) -> dict[str, Any]:
    """Load models, one beside the other, and run them on zeros, one after the other.

    Args:
        paths: the models.
        batch: windows a run.
        threads: threads within an operator.
        repeats: timed runs, after three that are not.
        gpu: the UUID of the first GPU, to run there; None for the CPU.
        shapes: of inputs that the files leave open.

    Returns:
        load_ms, latency_ms (median of a run of all; copies from and to the host included), rss_bytes (growth of the process by the sessions
        and their runs) and process_bytes (all of it). On a GPU also device_bytes, what they occupy there, context_bytes, what CUDA itself
        does, both None where the driver does not tell, and device_bytes_are, how they were read.

    Raises:
        ProviderError: there is no GPU that ONNX Runtime can compute on.
    """
    occupied, read_as = (None, "") if gpu is None else _start_cuda(paths[0], gpu)
    context = None if occupied is None else occupied()
    process = psutil.Process()
    before = process.memory_info().rss
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
    after = process.memory_info().rss
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


def nodes(*paths: Path, threads: int, cuda: bool = False, shapes: Shapes | None = None) -> dict[str, dict[str, int]]:
    """Which provider computes what of the optimised graphs: provider -> operator -> nodes; those of a loop's body once.

    Args: as of `open_session` and `measure`.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            session = open_session(path, threads=threads, cuda=cuda, profile=Path(folder) / "profile")
            session.run(None, _zeros(session, 1, shapes))  # one window: a loop over windows runs once
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                found[event["args"]["provider"]][event["args"]["op_name"]] += 1
    return {provider: dict(sorted(counts.items())) for provider, counts in sorted(found.items())}


def _start_cuda(path: Path, gpu: str) -> tuple[Callable[[], int | None], str]:
    """Start CUDA, whose context stays when the session goes, and find out how to read what this process occupies of a GPU.

    Returns:
        What reads the bytes, None where the driver tells none, and in words how it reads them.
    """
    try:
        own, free = own_bytes_reader(gpu), free_bytes_reader(gpu)
    except pynvml.NVMLError as error:
        open_session(path, cuda=True)
        return lambda: None, f"not told by the driver: {error}"
    untouched = free()
    open_session(path, cuda=True)
    if own() is None:
        return lambda: untouched - free(), "of all processes"
    return own, "of this process"


def _zeros(session: onnxruntime.InferenceSession, batch: int, shapes: Shapes | None) -> dict[str, np.ndarray]:
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
    parser.add_argument("--gpu", help="the UUID of the first GPU, to measure there")
    chosen = parser.parse_args()
    found: dict[str, Any]
    try:
        with redirect_stdout(sys.stderr):  # where a provider does not start, the runtime says so
            common = {"threads": chosen.threads, "shapes": chosen.shapes}
            cost = measure(*chosen.model, batch=chosen.batch, repeats=chosen.repeats, gpu=chosen.gpu, **common)
            found = {"cost": cost, "nodes": nodes(*chosen.model, cuda=chosen.gpu is not None, **common)}
    except ProviderError as error:
        found = {"skipped": str(error)}
    except Exception as error:  # the runtime's errors have no other base
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")  # the last line says it all, for whoever shows no more
    print(json.dumps(found))


if __name__ == "__main__":
    main()
