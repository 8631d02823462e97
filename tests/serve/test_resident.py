"""Resident memory: as psutil reports it, and without psutil on Linux."""

import subprocess
import sys

import pytest

GROWTH = """
import numpy as np, psutil
from tftq.serve.resident import resident_bytes
before = resident_bytes()
block = np.ones(5_000_000)  # 40 MB
print(resident_bytes() - before, resident_bytes() - psutil.Process().memory_info().rss)
"""


def test_it_is_what_psutil_reports() -> None:
    """In a process of its own: one that ran other tests may serve the block from memory that it holds already."""
    grown, difference = map(int, subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout.split())
    assert 35_000_000 < grown < 60_000_000 and abs(difference) < 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="the extra `serve` installs psutil on other systems")
def test_linux_needs_no_psutil() -> None:
    code = "import sys; sys.modules['psutil'] = None\nfrom tftq.serve.resident import resident_bytes\nprint(resident_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1_000_000
