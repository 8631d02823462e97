"""The driver's own view of a GPU's memory, through NVML (package `nvidia-ml-py`, module `pynvml`).

Only what measures on a GPU imports this module: serving on the CPU does without NVML.
"""

import os
from collections.abc import Callable

import pynvml


def free_bytes_reader(uuid: str) -> Callable[[], int]:
    """Return a function that reads the free memory of one GPU, all processes considered.

    Args:
        uuid: of the GPU, as in `torch.cuda.get_device_properties(device).uuid`; an index would name another GPU wherever
            CUDA_VISIBLE_DEVICES reorders them.

    Returns:
        a function that returns free bytes, and raises `pynvml.NVMLError` where they cannot be read.

    Raises:
        pynvml.NVMLError: no driver, no such GPU, or a driver that does not report free memory (WSL, MIG).
    """
    handle = _handle(uuid)

    def free_bytes() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)

    free_bytes()
    return free_bytes


def own_bytes_reader(uuid: str) -> Callable[[], int | None]:
    """Return a function that reads how much memory of one GPU this process occupies, including the CUDA context.

    Args, Raises: see `free_bytes_reader`.

    Returns:
        a function that returns the bytes, or None where the driver does not report them per process (WDDM, or a container with process
        ids of its own).
    """
    handle = _handle(uuid)

    def own_bytes() -> int | None:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)

    return own_bytes


def _handle(uuid: str) -> object:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
