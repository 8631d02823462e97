"""The driver's own view of a GPU's memory, through NVML (package `nvidia-ml-py`, module `pynvml`)."""

import os
from collections.abc import Callable

import pynvml


def free_bytes_reader(uuid: str) -> Callable[[], int]:
    """What reads the free memory of one GPU, other processes counted.

    Args:
        uuid: the GPU's, as `torch.cuda.get_device_properties(device).uuid` says it; an index would name another GPU wherever
            CUDA_VISIBLE_DEVICES reorders them.

    Returns:
        a function that gives free bytes, and raises `pynvml.NVMLError` where they cannot be read.

    Raises:
        pynvml.NVMLError: no driver, no such GPU, or a driver that does not tell (WSL, MIG).
    """
    handle = _handle(uuid)

    def free_bytes() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)

    free_bytes()
    return free_bytes


def own_bytes_reader(uuid: str) -> Callable[[], int | None]:
    """What reads how much memory of one GPU this process occupies, CUDA's own context counted.

    Args, Raises: as `free_bytes_reader`.

    Returns:
        a function that gives the bytes, or None where the driver does not tell those of one process (WDDM, or a container that
        gives processes other numbers).
    """
    handle = _handle(uuid)

    def own_bytes() -> int | None:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)

    return own_bytes


def _handle(uuid: str) -> object:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
