"""Sessions of ONNX Runtime: the one place that opens them."""

import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tftq.errors import ProviderError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_OPTIONS = {"arena_extend_strategy": "kSameAsRequested"}  # or the arena doubles as it grows, and a session seems as large
SEVERITY_ERROR, SEVERITY_FATAL = 3, 4
FLOATS: dict[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
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
