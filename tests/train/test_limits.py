"""A real limit on a real process, and trainings long enough to show what grows; each in a process of its own, see limits.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs import ROOT
from tests.train.stand_ins import ListTimeline, tiny_trainer
from tftq.memory.counter import ByteCounter


def in_a_process(name: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.train.limits", name, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on the address space that its allocator respects")
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA reserves more addresses than any limit leaves")
def test_under_a_real_limit_the_batch_is_halved_until_it_fits(tmp_path: Path) -> None:
    found = in_a_process("limited", tmp_path)
    sizes, fits = found["sizes"], found["batch_size"]
    tried = [size for size in (64, 32, 16, 8, 4, 2) if size > fits]
    assert tried and fits > 1, "the first size must fail and a smaller one pass"
    assert sizes == [*tried, *[fits] * (64 // fits)]
    assert found["updates"] == 1
    assert len(found["warnings"]) == len(tried)
    for size, words in zip(tried, found["warnings"], strict=True):
        assert f"out of memory with {size} windows to a forward pass (RuntimeError: " in words and f"continuing with {size // 2}," in words


@pytest.mark.slow
def test_220_updates_in_20_epochs_leave_resident_memory_flat(tmp_path: Path) -> None:
    """And no file stays open."""
    found = in_a_process("long", tmp_path)
    resident = np.array(found["resident"], dtype=np.float64)
    assert len(resident) == 220
    slope = np.polyfit(np.arange(170), resident[50:], 1)[0]
    assert slope < 10_000, f"{slope:.0f} bytes an update"
    assert len(set(found["files"])) == 1


def test_live_tensor_bytes_at_the_ends_of_the_second_and_third_epoch_are_equal(tmp_path: Path) -> None:
    counter = ByteCounter()
    live: list[int] = []

    class Noting(ListTimeline):
        def record(self, phase: str, epoch: int) -> None:
            if phase == "EPOCH_END":
                live.append(counter.live_bytes)

    with counter:
        tiny_trainer(tmp_path, timeline=Noting()).fit()
    assert len(live) == 3
    assert live[0] == live[1] == live[2] > 0
