"""What a probe can tell on each device, and what it says when it cannot."""

import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
import torch

from tftq.memory.components import Components
from tftq.memory.labels import LabellingCounter
from tftq.memory.probe import MemoryProbe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_on_the_cpu_the_counter_counts_and_the_rest_is_none() -> None:
    with LabellingCounter() as counter:
        probe = MemoryProbe(CPU, counter)
        x = torch.zeros(100)
        del x
        y = torch.zeros(50)
        reading = probe.read()
        assert (probe.source, reading.allocated, reading.peak) == ("counter", 200, 400)
        assert (reading.reserved, reading.device_free, reading.error) == (None, None, None)
        assert reading.rss is not None and reading.rss > 10 * 2**20
        probe.reset_peak()
        assert probe.read().peak == y.untyped_storage().nbytes()


def test_what_is_held_is_told_apart_now_and_at_the_peak() -> None:
    with LabellingCounter() as counter:
        probe = MemoryProbe(CPU, counter)
        assert probe.read().components is None  # nobody said whose it is
        weight, state = torch.zeros(100, requires_grad=True), torch.zeros(200)
        counter.track([weight], "parameters")
        probe.held = lambda: Components(parameters=400, gradients=0, optimizer=0)
        activation = weight.detach() + 1
        del activation
        reading = probe.read()
    assert reading.components == {"parameters": 400, "gradients": 0, "optimizer": 0, "left_over": 800}
    assert reading.peak_components is not None
    assert reading.peak_components == {
        **{"parameters": 400, "gradients": 0, "optimizer": 0, "workspace": 0},
        **{"activations": 400, "left_over": state.untyped_storage().nbytes()},
    }


def test_without_a_counter_only_the_process_is_measured() -> None:
    probe = MemoryProbe(CPU)
    probe.reset_peak()
    reading = probe.read()
    assert probe.source == "rss"
    assert (reading.allocated, reading.reserved, reading.peak, reading.device_free, reading.error) == (None,) * 5
    assert reading.rss


def test_a_figure_that_fails_is_none_with_its_reason_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(LabellingCounter):
        @property
        def live_bytes(self) -> int:
            raise RuntimeError("out of order")

        @live_bytes.setter
        def live_bytes(self, value: int) -> None:
            pass

    reading = MemoryProbe(CPU, Broken()).read()
    assert reading.allocated is None
    assert reading.error == "allocated: RuntimeError: out of order"
    assert reading.peak == 0
    assert reading.rss


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of which the allocator holds 30, 20 of them in use, 25 at most, and 1,000 free by CUDA's word."""
    figures = {"memory_allocated": 20, "memory_reserved": 30, "max_memory_allocated": 25, "mem_get_info": (1000, 4000)}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234"))


def fail(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_by_its_allocator_and_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(free=900))
    probe = MemoryProbe(CUDA)
    reading = probe.read()
    assert (reading.allocated, reading.reserved, reading.peak, reading.device_free) == (20, 30, 25, 900)
    assert (probe.source, probe.note, reading.error, asked) == ("cuda", None, None, ["GPU-1234"])

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", fail)
    reading = probe.read()
    assert (reading.allocated, reading.device_free) == (20, None)
    assert reading.error == "device_free: NVMLError_Unknown: Unknown Error"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"])
def test_without_nvml_cuda_tells_what_is_free_and_the_note_why(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    for name in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"):
        monkeypatch.setattr(pynvml, name, fail if name == broken else lambda *_: None)
    probe = MemoryProbe(CUDA)
    assert probe.note == "NVML does not tell the GPU's free memory (Unknown Error); CUDA does"
    assert (probe.read().device_free, probe.read().error) == (1000, None)


@pytest.mark.usefixtures("gpu")
def test_the_peak_of_a_gpu_is_reset_by_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[torch.device] = []
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    MemoryProbe(CUDA).reset_peak()
    assert reset == [CUDA]


def test_a_peak_that_cannot_be_reset_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with LabellingCounter() as counter:
        probe = MemoryProbe(CPU, counter)
        fails = [True]

        def reset() -> None:
            if fails[0]:
                raise RuntimeError("driver gone")

        monkeypatch.setattr(counter, "reset_peak", reset)
        probe.reset_peak()
        reading = probe.read()
        assert reading.peak is None and reading.allocated is not None
        assert reading.error == "peak, its last reset: RuntimeError: driver gone"
        fails[0] = False
        probe.reset_peak()
        reading = probe.read()
        assert reading.peak is not None and reading.error is None


def test_a_probe_of_the_cpu_needs_no_nvml() -> None:
    code = (
        "import sys; sys.modules['pynvml'] = None; import torch, tftq.memory.probe as p; print(p.MemoryProbe(torch.device('cpu')).source)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "rss\n"
