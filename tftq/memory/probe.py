"""Read how much memory is in use now; None, never 0, for figures that a device cannot report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import psutil
import torch

from tftq.memory.components import Components
from tftq.memory.labels import LabellingCounter

Source = Literal["cuda", "counter", "rss"]
Figure = TypeVar("Figure")


@dataclass(frozen=True)
class Reading:
    """Bytes at one moment; None where the device has no such figure, or where `error` gives the reason why it could not be read."""

    allocated: int | None  # tensors
    reserved: int | None  # held by the allocator for them
    peak: int | None  # the most that was allocated since the last reset
    device_free: int | None  # free on the GPU, other processes counted
    rss: int | None  # resident memory of this process
    error: str | None = None
    components: dict[str, int] | None = None  # the components of `allocated`: parameters, gradients, optimizer and leftovers
    peak_components: dict[str, int] | None = None  # the same of the peak, with activations and workspace


class MemoryProbe:
    """Reads the memory of this process and its device.

    Args:
        device: the device of the tensors that matter.
        counter: counts their bytes where the device itself does not, as on the CPU; enter it around the work.

    Attributes:
        source: where `allocated` and `peak` come from: the allocator of "cuda", the byte "counter", or nowhere ("rss").
        held: returns the bytes of parameters, gradients and optimizer on the device; None until their owner is known.
        note: why the GPU's free memory comes from CUDA and not from NVML; None where it does come from NVML, or there is no GPU.
    """

    def __init__(self, device: torch.device, counter: LabellingCounter | None = None) -> None:
        self.source: Source = "cuda" if device.type == "cuda" else "rss" if counter is None else "counter"
        self.held: Callable[[], Components] | None = None
        self.note: str | None = None
        self._device, self._counter, self._process = device, counter, psutil.Process()
        self._reset_errors: list[str] = []
        self._device_free: Callable[[], int] | None = None
        if self.source == "cuda":
            import pynvml  # on the CPU it is not needed

            from tftq.serve.nvml import free_bytes_reader

            try:
                self._device_free = free_bytes_reader(str(torch.cuda.get_device_properties(device).uuid))
            except pynvml.NVMLError as error:
                self.note = f"NVML does not tell the GPU's free memory ({error}); CUDA does"
                self._device_free = self._free_by_cuda

    def read(self) -> Reading:
        """Read every available figure; one that fails is None with its reason in `error`, the others stay valid."""
        errors = list(self._reset_errors)
        allocated, reserved, peak = self._readers()
        if self._reset_errors:  # the peak would include earlier work
            peak = None
        values = (
            _attempt("allocated", allocated, errors),
            _attempt("reserved", reserved, errors),
            _attempt("peak", peak, errors),
            _attempt("device_free", self._device_free, errors),
            _attempt("rss", lambda: self._process.memory_info().rss, errors),
        )
        components = _attempt("components", self._held(values[0]), errors)
        peak_components = _attempt("peak components", self._at_peak(values[2], components), errors)
        return Reading(*values, "; ".join(errors) or None, components, peak_components)

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now; where that fails, the next reading has no peak and gives the reason."""
        self._reset_errors.clear()
        _attempt("peak, its last reset", self._reset, self._reset_errors)

    def _reset(self) -> int:
        if self.source == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._counter is not None:
            self._counter.reset_peak()
        return 0

    def _readers(self) -> tuple[Callable[[], int] | None, ...]:
        """Return the readers of allocated, reserved and peak; None where the source has no such figure."""
        if self.source == "cuda":
            cuda, device = torch.cuda, self._device
            return (
                lambda: cuda.memory_allocated(device),
                lambda: cuda.memory_reserved(device),
                lambda: cuda.max_memory_allocated(device),
            )
        counter = self._counter
        if counter is None:
            return None, None, None
        return lambda: counter.live_bytes, None, lambda: counter.peak_bytes

    def _held(self, allocated: int | None) -> Callable[[], dict[str, int]] | None:
        """Return the reader of the components of the allocated bytes."""
        held = self.held
        if held is None or allocated is None:
            return None

        def components() -> dict[str, int]:
            found = held()
            return {**found._asdict(), "left_over": allocated - sum(found)}

        return components

    def _at_peak(self, peak: int | None, components: dict[str, int] | None) -> Callable[[], dict[str, int]] | None:
        """Return the reader of the peak's components; leftovers of now are taken to have been there at the peak."""
        counter = self._counter
        if counter is None or peak is None or components is None:
            return None

        def at_peak() -> dict[str, int]:
            labelled = counter.labelled_at_peak
            rest = peak - sum(labelled.values())
            left_over = min(components["left_over"], rest)
            return {**labelled, "activations": rest - left_over, "left_over": left_over}

        return at_peak

    def _free_by_cuda(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]


def _attempt(name: str, read: Callable[[], Figure] | None, errors: list[str]) -> Figure | None:
    """Read a figure; None with its reason noted on failure: a probe must not end the training it watches, nor hide a failure."""
    if read is None:
        return None
    try:
        return read()
    except Exception as error:
        errors.append(f"{name}: {type(error).__name__}: {error}")
        return None
