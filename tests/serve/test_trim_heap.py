"""Freed memory goes back to the system, in a fresh process, where nobody else's blocks lie between."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import numpy
from tftq.serve.resident import resident_bytes, trim_heap
blocks = [numpy.zeros(2500) for _ in range(3000)]  # 60 MB, each too small to be mapped by itself
last = numpy.zeros(2500)  # behind them, so that the heap does not end before it
del blocks
held = resident_bytes()
trim_heap()
print(held - resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone keeps what is freed")
def test_what_was_freed_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50e6
