"""What a model's session costs, measured in a process of its own: `python -m tftq.export.measure MODEL [...]`.

Imports nothing but ONNX Runtime, numpy and psutil, so that the figures are the session's.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil

METADATA_KEY = "tftq"  # of what a file says of itself
SEVERITY_ERROR = 3


def open_session(path: Path, *, threads: int = 0, optimise: bool = True) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime on the CPU.

    Args:
        path: the model.
        threads: threads within an operator; 0 leaves it to the runtime.
        optimise: let the runtime fuse operators; without, it computes the graph as it is written.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    options.intra_op_num_threads = threads
    if may_saturate():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def may_saturate(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the runtime's integer kernels might add in 16 bits here: 255 · 127 · 2 is more than they hold.

    That is so on x86 without VNNI, and assumed where nothing says what the CPU has: the exact kernels are only a little slower.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return not cpu.exists() or "vnni" not in cpu.read_text()


def feeds(session: onnxruntime.InferenceSession, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """The inputs by the session's own names, in its order; each anything that numpy takes as an array."""
    return {node.name: np.asarray(array, np.float32) for node, array in zip(session.get_inputs(), inputs, strict=True)}


def measure(path: Path, *, batch: int, threads: int, repeats: int) -> dict[str, float]:
    """Load a model and run it on zeros.

    Args:
        path: the model.
        batch: windows a run.
        threads: threads within an operator.
        repeats: timed runs, after three that are not.

    Returns:
        load_ms, latency_ms (median), rss_bytes (growth of the process by the session and its runs) and process_bytes (all of it).
    """
    process = psutil.Process()
    before = process.memory_info().rss
    start = time.perf_counter()
    session = open_session(path, threads=threads)
    load = time.perf_counter() - start
    zeros = feeds(session, [np.zeros([batch, *node.shape[1:]]) for node in session.get_inputs()])
    seconds = []
    for _ in range(3 + repeats):
        start = time.perf_counter()
        session.run(None, zeros)
        seconds.append(time.perf_counter() - start)
    after = process.memory_info().rss
    return {
        "load_ms": 1e3 * load,
        "latency_ms": 1e3 * statistics.median(seconds[3:]),
        "rss_bytes": after - before,
        "process_bytes": after,
    }


def main() -> None:
    """Print the measurement as one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.model, batch=arguments.batch, threads=arguments.threads, repeats=arguments.repeats)))


if __name__ == "__main__":
    main()
