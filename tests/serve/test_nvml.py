"""What the driver tells of one process, by a stand-in for it."""

import os
from types import SimpleNamespace

import pynvml
import pytest

from tftq.serve.nvml import own_bytes_reader


@pytest.mark.parametrize(
    ("processes", "own"),
    [
        ([(1, 700), (os.getpid(), 300)], 300),
        ([(1, 700)], None),  # in a container that gives processes other numbers
        ([(os.getpid(), None)], None),  # WDDM
        ([], None),
    ],
)
def test_a_process_finds_its_own_bytes(monkeypatch: pytest.MonkeyPatch, processes: list[tuple[int, int | None]], own: int | None) -> None:
    asked: list[str] = []
    told = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes]
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: told)
    assert own_bytes_reader("1234")() == own
    assert asked == ["GPU-1234"]
