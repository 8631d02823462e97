"""What a training is given beside its model and its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from tftq.model.batch import WindowSource


class Timeline(Protocol):
    """A recorder of the memory in use."""

    def record(self, phase: str, epoch: int) -> None:
        """Leave one record for a phase of an epoch, epochs counted from 1."""


@dataclass(frozen=True)
class TrainingData:
    """The windows of a training.

    Args:
        train: to learn from.
        validation: to decide which epoch was the best.
        fingerprint: what a checkpoint must have been trained on to be resumed.
    """

    train: WindowSource
    validation: WindowSource
    fingerprint: str = ""


@dataclass(frozen=True)
class Workplace:
    """Where a training computes and writes.

    Args:
        folder: for metrics.jsonl and checkpoints/; made where missing.
        device: to compute on.
        timeline: records the memory in use at every phase.
        recipe: the text of it, which checkpoints keep.
    """

    folder: Path
    device: torch.device
    timeline: Timeline
    recipe: str = ""
