"""Memory that was freed, given back to the system."""

import ctypes
import sys


def return_freed() -> None:
    """Hand the pages of freed blocks back to the system: glibc keeps them for later blocks, and the process stays as large as it was.

    Other C libraries give them back by themselves, or cannot be told to.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
