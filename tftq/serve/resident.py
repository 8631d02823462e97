"""The resident memory of this process, and how to keep it small."""

import ctypes
import os
import sys


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil  # which the extra `serve` installs on these systems

    return int(psutil.Process().memory_info().rss)


def use_system_pool() -> None:
    """Let Arrow, imported after this, allocate by the system's allocator unless the user chose a pool: its own holds 10 MB more."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def trim_heap() -> None:
    """Return freed heap pages to the system: glibc keeps them for later allocations, and the process would stay as large as it was.

    Other C libraries return them by themselves, or have no call for it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
