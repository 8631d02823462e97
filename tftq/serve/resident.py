"""The resident memory of this process."""

import os
import sys


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil  # which the extra `serve` installs on these systems

    return int(psutil.Process().memory_info().rss)
