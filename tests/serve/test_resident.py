"""Resident memory: as psutil reports it, and without psutil on Linux."""

import subprocess
import sys

import numpy as np
import psutil
import pytest

from tftq.serve.resident import resident_bytes


def test_it_is_what_psutil_reports() -> None:
    block = np.ones(5_000_000)  # 40 MB
    assert abs(resident_bytes() - psutil.Process().memory_info().rss) < 1_000_000
    held = resident_bytes()
    del block
    assert held - resident_bytes() > 35_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="the extra `serve` installs psutil on other systems")
def test_linux_needs_no_psutil() -> None:
    code = "import sys; sys.modules['psutil'] = None\nfrom tftq.serve.resident import resident_bytes\nprint(resident_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1_000_000
