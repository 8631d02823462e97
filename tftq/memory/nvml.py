"""The driver's own view of a GPU's memory, through NVML (package `nvidia-ml-py`, module `pynvml`)."""

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
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def free_bytes() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)

    free_bytes()
    return free_bytes
