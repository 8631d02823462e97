"""Watching one run's memory: the counter where the device does not count itself, its probe and its timeline."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from tftq.memory.components import component_bytes
from tftq.memory.labels import LabellingCounter
from tftq.memory.probe import MemoryProbe
from tftq.memory.timeline import Timeline


class MemoryWatch:
    """A timeline for a device.

    Args:
        path: of memory.jsonl.
        device: where the tensors are that matter; on the CPU every operator is watched to count their bytes.

    Attributes:
        timeline: takes the records.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._device = device
        self._counter = LabellingCounter("cpu") if device.type == "cpu" else None
        self.probe = MemoryProbe(device, self._counter)
        self.timeline = Timeline(path, self.probe)

    @contextmanager
    def watching(self, model: nn.Module | None = None) -> Iterator[None]:
        """Count what is allocated within, and the model, which was there before; forget whom it belonged to at the end."""
        try:
            with ExitStack() as counting:
                if self._counter is not None:
                    counting.enter_context(self._counter)
                    counting.enter_context(self._counter.labelling(model))
                    if model is not None:
                        self._counter.track([*model.parameters(), *model.buffers()], "parameters")
                self.probe.reset_peak()
                yield
        finally:
            self.probe.held = None  # or the model and its optimizer would live on until the next ones are followed
            gc.collect()  # a trainer and its validator refer to each other, and hold them too

    def follow(self, model: nn.Module, optimizer: Optimizer) -> None:
        """From now on, records say what of the memory belongs to whom."""
        self.probe.held = lambda: component_bytes(model, optimizer, device=self._device.type)
        if self._counter is not None:  # what a checkpoint brings was made by no step
            optimizer.register_load_state_dict_post_hook(self._counter.label_state)
