"""The data of a training, and the place where it computes and writes."""

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
        train: the windows to learn from.
        validation: the windows that decide which epoch was the best.
        fingerprint: of the data; a checkpoint to resume must have the same.
    """

    train: WindowSource
    validation: WindowSource
    fingerprint: str = ""


@dataclass(frozen=True)
class Workplace:
    """The device, the folder and the memory recorder of a training.

    Args:
        folder: for metrics.jsonl and checkpoints/; made where missing.
        device: to compute on.
        timeline: records the memory in use at every phase.
        recipe: the recipe's text, kept in checkpoints.
    """

    folder: Path
    device: torch.device
    timeline: Timeline
    recipe: str = ""
