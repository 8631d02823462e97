"""What sessions of models cost, measured in a process of their own: `python -m tftq.export.measure MODEL [MODEL ...]`.

Imports nothing but ONNX Runtime, numpy, psutil and NVML, so that the figures are the session's.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pynvml

from tftq.errors import ProviderError
from tftq.memory.nvml import free_bytes_reader, own_bytes_reader

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_OPTIONS = {"arena_extend_strategy": "kSameAsRequested"}  # or the arena doubles as it grows, and a session seems as large
WARM_UP = 3  # runs that are not timed
METADATA_KEY = "tftq"  # of what a file says of itself
SEVERITY_ERROR, SEVERITY_FATAL = 3, 4
FLOATS: dict[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
Shapes = Mapping[str, Sequence[int]]  # of inputs whose file leaves their dimensions open, by name, without the batch
AS_REQUESTED = 1  # onnxruntime's kSameAsRequested


def open_session(
    path: Path,
    *,
    threads: int = 0,
    optimise: bool = True,
    optimised: Path | None = None,
    cuda: bool = False,
    profile: Path | None = None,
    spinning: bool = True,
    shared: bool = False,
) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime, on the CPU unless said otherwise.

    Args:
        path: the model.
        threads: threads within an operator; 0 leaves it to the runtime.
        optimise: let the runtime fuse operators; without, it computes the graph as it is written.
        optimised: where to write the graph that it computes.
        cuda: compute on the first GPU, by the CUDA provider, and on the CPU only what that has no kernel for.
        profile: how the name of the file begins that `end_profiling` writes.
        spinning: threads without work wait for more on their core: best for one session alone, and in the way of every other.
        shared: take the memory that it computes with from one arena of the process, see `shared_arena`, rather than from one of its own.

    Raises:
        ProviderError: CUDA is asked for, and this package or machine cannot: the list of providers says nothing of the device.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR if cuda else SEVERITY_FATAL  # on the CPU what it would tell is raised as well
    options.intra_op_num_threads = threads
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if may_saturate():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    if shared:
        shared_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.enable_mem_pattern = False  # a block for all of a run's tensors seldom fits into what the others have left free
    if not cuda:
        return onnxruntime.InferenceSession(path, options, providers=[CPU])
    package = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in onnxruntime.get_available_providers():
        raise ProviderError(f"{package} is built without its CUDA provider; install onnxruntime-gpu")
    onnxruntime.preload_dlls()  # cuBLAS and cuDNN lie in packages of their own, where the loader does not look
    session = onnxruntime.InferenceSession(path, options, providers=[(CUDA, CUDA_OPTIONS), CPU])
    if CUDA not in session.get_providers():
        raise ProviderError(
            f"the CUDA provider of {package} does not start here, and it fell back to {', '.join(session.get_providers())}; "
            "install the versions of CUDA and cuDNN that it names on standard error"
        )
    return session


@cache
def shared_arena() -> None:
    """Give the process one arena for all sessions opened with `shared`: what one has computed with is free for the next.

    It grows by what is asked for, and cannot be taken back while the process lives.
    """
    where = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg({"arena_extend_strategy": AS_REQUESTED}))


def may_saturate(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the runtime's integer kernels might add in 16 bits here: 255 · 127 · 2 is more than they hold.

    That is so on x86 without VNNI, and assumed where nothing says what the CPU has: the exact kernels are only a little slower.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return not cpu.exists() or "vnni" not in cpu.read_text()


def feeds(session: onnxruntime.InferenceSession, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """The inputs by the session's own names and types, in its order; each anything that numpy takes as an array."""
    return {
        node.name: np.asarray(array, FLOATS.get(node.type, np.float32)) for node, array in zip(session.get_inputs(), inputs, strict=True)
    }


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
