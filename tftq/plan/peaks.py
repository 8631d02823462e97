"""Predict the peak of training by running it on fake tensors, which take no memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensorMode

from tftq.memory.labels import LabellingCounter
from tftq.spec.units import MIB

ALLOCATOR_BLOCK = 512  # bytes; kMinBlockSize of PyTorch's CUDACachingAllocator: every tensor takes a multiple of it
# Of one handle with the default CUBLAS_WORKSPACE_CONFIG :4096:2:16:8 (PyTorch, CUDA semantics, "cuBLAS workspaces"), which the caching
# allocator counts; one for the thread of the forward pass and one for that of the backward pass.
CUBLAS_WORKSPACE = 2 * 8_519_680
# Memory of a card that a process takes before its first tensor: context, kernels, handles. No allocator counts it. An allowance, not a
# measurement: 300 to 500 MiB is what nvidia-smi usually shows for PyTorch on Ampere with CUDA 12.
CUDA_CONTEXT = 400 * MIB


@dataclass(frozen=True)
class PlannedPeak:
    """The most bytes of tensors at once, by component at that moment.

    `components` has parameters (all that lives after building), gradients, optimizer, activations, workspace (of the LSTM),
    and left_over: bytes not freed at the end of the step that belong to none of the others.
    """

    peak_bytes: int
    components: dict[str, int]

    def without(self, component: str) -> "PlannedPeak":
        """Return the peak without that component."""
        return self.plus(component, -self.components[component])

    def plus(self, component: str, size: int) -> "PlannedPeak":
        """Return the peak with so many more bytes of a component throughout."""
        return PlannedPeak(self.peak_bytes + size, {**self.components, component: self.components[component] + size})


def plan_peaks(make_steps: Callable[[], Sequence[Callable[[], object]]], *, rounding: int = 1) -> list[PlannedPeak]:
    """Build a model and take its steps one after another on fake tensors.

    Equal to the byte for what an update allocates in FP32 tensors on the CPU, LSTM included. Not predicted: the temporaries within a
    kernel, and on a GPU what cuDNN's LSTM keeps (oneDNN's workspace stands in for it) and the context of CUDA.

    Args:
        make_steps: builds everything and returns functions without arguments. All of it runs under `FakeTensorMode`: no values, so no
            `.item()`, and no tensors made before.
        rounding: each storage takes a multiple of so many bytes, as in an allocator.

    Returns:
        The peak of each step; parameters live throughout, and the optimizer's state from its first step on.
    """
    peaks = []
    with FakeTensorMode(), LabellingCounter(rounding=rounding) as counter:
        steps = make_steps()
        counter.label_everything("parameters")
        with counter.labelling():
            for step in steps:
                counter.reset_peak()
                step()
                peaks.append(_peak(counter))
    return peaks


def _peak(counter: LabellingCounter) -> PlannedPeak:
    labelled, peak = counter.labelled_at_peak, counter.peak_bytes
    left_over = counter.live_bytes - sum(counter.labelled.values())
    activations = peak - sum(labelled.values()) - left_over
    return PlannedPeak(peak, {**labelled, "activations": activations, "left_over": left_over})
