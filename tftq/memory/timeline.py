"""Record the memory in use at every phase of every epoch, and report missing records."""

import gc
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tftq.memory.components import component_bytes
from tftq.memory.labels import LabellingCounter
from tftq.memory.probe import MemoryProbe, Reading, Source

_VALIDATION = ("BEFORE_VALIDATION", "VALIDATION_START", "VALIDATION_END", "AFTER_VALIDATION")
PHASES = ("EPOCH_START", "TRAIN_BATCH", "AFTER_TRAINING", *_VALIDATION, "AFTER_CHECKPOINT", "EPOCH_END")
"""The phases of an epoch in their order; TRAIN_BATCH stands for TRAIN_BATCH_<k>, one or more an epoch."""

_TRAIN_BATCH = re.compile(r"TRAIN_BATCH_\d+")


class Probe(Protocol):
    """A reader of memory, such as `MemoryProbe`."""

    source: Source

    def read(self) -> Reading:
        """Read the bytes in use now."""

    def reset_peak(self) -> None:
        """Reset the peak."""


class Timeline:
    """Writes memory.jsonl and counts its records against those expected of every epoch.

    Nine are expected: one for each of `PHASES`, and one more for each further TRAIN_BATCH_<k>. An epoch that ended with none of the four
    phases of validation did not validate (`validate.every`) and has fewer to write. A record whose probe failed does not count.

    Args:
        path: where records are appended, one JSON object per line. Records that exist already, from a training that is now resumed, count;
            a last line that was cut off in the middle is removed.
        probe: reads the memory.

    Attributes:
        stage: the stage of training, "train", "prune" or "qat", whose epochs count from 1 again; part of every record.
    """

    def __init__(self, path: Path, probe: Probe) -> None:
        self.stage = "train"
        self._path, self._probe = path, probe
        self._epochs: dict[tuple[str, int], dict[str, str | None]] = {}  # stage and epoch -> phase -> error
        self._peak: int | None = None
        if path.exists():
            self._read_back()

    def record(self, phase: str, epoch: int) -> None:
        """Write one record and reset the peak, so that each record has the peak since the one before.

        Args:
            phase: one of `PHASES`, or TRAIN_BATCH_<k>.
            epoch: counted from 1.
        """
        assert phase in PHASES or _TRAIN_BATCH.fullmatch(phase), phase
        record = {"stage": self.stage, "epoch": epoch, "phase": phase, "source": self._probe.source, **asdict(self._probe.read())}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._count(record)
        self._probe.reset_peak()

    @property
    def peak_bytes(self) -> int | None:
        """Return the most bytes of tensors in any record; of the process where tensors are not counted; None before the first record."""
        return self._peak

    @property
    def expected(self) -> int:
        """Count the records expected of the epochs so far."""
        return sum(len(self._owed(phases)) for phases in self._epochs.values())

    @property
    def recorded(self) -> int:
        """Count the expected records written by a probe that worked."""
        return self.expected - len(self.missing)

    @property
    def missing(self) -> list[str]:
        """List the records that are missing or failed, each with its stage, epoch, phase and reason."""
        return [
            f"{stage} epoch {epoch} {phase}: {phases.get(phase) or 'never recorded'}"
            for (stage, epoch), phases in self._epochs.items()
            for phase in self._owed(phases)
            if phases.get(phase, "") is not None
        ]

    def summary(self) -> dict[str, Any]:
        """Return the tally for summary.json; `missing` has the reasons where recorded is less than expected."""
        return {
            "source": self._probe.source,
            "peak_bytes": self.peak_bytes,
            "checkpoints_expected": self.expected,
            "checkpoints_recorded": self.recorded,
            "missing": self.missing,
        }

    def __str__(self) -> str:
        """Format the tally, such as "8 of 9"."""
        return f"{self.recorded} of {self.expected}"

    @staticmethod
    def _owed(phases: dict[str, str | None]) -> list[str]:
        batches = [phase for phase in phases if _TRAIN_BATCH.fullmatch(phase)] or ["TRAIN_BATCH"]
        idle = "EPOCH_END" in phases and not any(phase in phases for phase in _VALIDATION)
        fixed = [phase for phase in PHASES if phase != "TRAIN_BATCH" and not (idle and phase in _VALIDATION)]
        return [fixed[0], *batches, *fixed[1:]]

    def _count(self, record: dict[str, Any]) -> None:
        self._epochs.setdefault((record["stage"], record["epoch"]), {})[record["phase"]] = record["error"]
        peak = record["rss"] if record["source"] == "rss" else record["peak"]
        if peak is not None:
            self._peak = max(peak, self._peak or 0)

    def _read_back(self) -> None:
        text = self._path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            self._count(json.loads(line))


class MemoryRecorder:
    """Records the memory of a run on a device: a timeline, its probe, and the counter where the device does not count itself.

    Args:
        path: of memory.jsonl.
        device: the device of the tensors that matter; on the CPU every operator is watched to count their bytes.

    Attributes:
        timeline: writes the records.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._device = device
        self._counter = LabellingCounter("cpu") if device.type == "cpu" else None
        self.probe = MemoryProbe(device, self._counter)
        self.timeline = Timeline(path, self.probe)

    @contextmanager
    def recording(self, model: nn.Module | None = None) -> Iterator[None]:
        """Count the bytes allocated within, and those of an existing model; forget its owner at the end."""
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
        """Let records from now on split the memory into parameters, gradients and optimizer state."""
        self.probe.held = lambda: component_bytes(model, optimizer, device=self._device.type)
        if self._counter is not None:  # the state from a checkpoint was made by no step
            optimizer.register_load_state_dict_post_hook(self._counter.label_state)
