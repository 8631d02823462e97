"""Sessions of ONNX Runtime: the one module that imports the runtime and opens sessions.

Since 1.29 the runtime sends telemetry unless the environment forbids it before the first import. This module forbids it, for child
processes too, unless the user has set the variable.
"""

import os
import platform
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tftq.errors import ProviderError
from tftq.serve.resident import trim_heap

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_chosen_by_user = NO_TELEMETRY in os.environ
os.environ.setdefault(NO_TELEMETRY, "1")

import onnxruntime  # noqa: E402
from onnxruntime import InferenceSession, SessionOptions  # noqa: E402

if sys.platform == "win32" and not _chosen_by_user:
    onnxruntime.disable_telemetry_events()  # Windows builds do not read the variable

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
) -> InferenceSession:
    """Open a session of ONNX Runtime, on the CPU by default.

    Args:
        path: the model.
        threads: threads within an operator; 0 leaves the number to the runtime.
        optimise: let the runtime fuse operators; False computes the graph as it is written.
        optimised: where to write the optimised graph.
        cuda: compute on the first GPU by the CUDA provider; operators without a CUDA kernel run on the CPU.
        profile: prefix of the profile's file name; `end_profiling` writes the file.
        spinning: let idle threads busy-wait for work: fastest for a single session, slower for several sessions in one process.
        shared: allocate working memory from one arena of the process, see `shared_arena`, instead of an arena of the session's own.

    Raises:
        ProviderError: CUDA is asked for and does not work with this package or on this machine (the list of available providers does
            not depend on the device).
    """
    options = SessionOptions()
    options.log_severity_level = SEVERITY_ERROR if cuda else SEVERITY_FATAL  # on the CPU every problem it would log is raised as well
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
        options.enable_mem_pattern = False  # one block for all tensors of a run seldom fits the free parts of a shared arena
    if not cuda:
        session = InferenceSession(path, options, providers=[CPU])
        trim_heap()  # the file's own bytes, which loading has freed
        return session
    package = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in onnxruntime.get_available_providers():
        raise ProviderError(f"{package} is built without its CUDA provider; install onnxruntime-gpu")
    onnxruntime.preload_dlls()  # cuBLAS and cuDNN lie in packages of their own, where the loader does not look
    session = InferenceSession(path, options, providers=[(CUDA, CUDA_OPTIONS), CPU])
    if CUDA not in session.get_providers():
        raise ProviderError(
            f"the CUDA provider of {package} does not start here, and it fell back to {', '.join(session.get_providers())}; "
            "install the versions of CUDA and cuDNN that it names on standard error"
        )
    return session


def require_runtime(path: Path, oldest: str) -> None:
    """Refuse a file that the installed runtime is too old for.

    Args:
        path: the file.
        oldest: the oldest release that can load it, such as 1.18.

    Raises:
        ProviderError: names both releases.
    """
    installed = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if installed < tuple(int(part) for part in oldest.split(".")):
        raise ProviderError(
            f"{path}: found onnxruntime {onnxruntime.__version__}; allowed: {oldest} or later; pip install --upgrade onnxruntime"
        )


@cache
def shared_arena() -> None:
    """Register one arena of the process for all sessions opened with `shared`: memory that one run has used is free for the next.

    It grows by the sizes requested and stays until the process ends.
    """
    where = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg({"arena_extend_strategy": AS_REQUESTED}))


def may_saturate(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the runtime's integer kernels may saturate: they add in 16 bits, and 255 · 127 · 2 overflows.

    True on x86 without VNNI, and where the CPU's features cannot be read: the exact kernels are only a little slower.

    Args:
        cpu: the file that lists the CPU's features.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return not cpu.exists() or "vnni" not in cpu.read_text()


def feeds(session: InferenceSession, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return a session's inputs by name, converted to its types.

    Args:
        session: the session.
        inputs: array-likes in the session's order.
    """
    return {
        node.name: np.asarray(array, FLOATS.get(node.type, np.float32)) for node, array in zip(session.get_inputs(), inputs, strict=True)
    }
