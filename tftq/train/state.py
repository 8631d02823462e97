"""The result of a training, and the state of one in progress."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

from tftq.evaluate.metrics import Validation, validation_summary
from tftq.spec.summary import TrainingSummary


@dataclass(frozen=True)
class Training:
    """The result of a training; the model holds the best weights.

    Args:
        updates: applied updates.
        skipped: FP16 steps that overflowed and were not applied.
        samples_per_s: windows trained on in a second of training, validation and checkpoints not counted.
        best_epoch: the epoch whose weights the model holds, counted from 1; 0 is the initial model.
        validation: the validation of that epoch.
        batch_size: windows to a forward pass at the end.
        out_of_memory: how often memory ran out, and the work was repeated in smaller parts.
        start_loss: the validation loss of the initial model, where that counted as epoch 0.
    """

    updates: int
    skipped: int
    samples_per_s: float
    best_epoch: int
    validation: Validation
    batch_size: int
    out_of_memory: int
    start_loss: float | None = None

    def summary(self) -> TrainingSummary:
        """Convert it to its form in summary.json."""
        return TrainingSummary(
            updates=self.updates,
            skipped_updates=self.skipped,
            best_epoch=self.best_epoch,
            samples_per_s=self.samples_per_s,
            batch_size=self.batch_size,
            out_of_memory=self.out_of_memory,
            start_loss=self.start_loss,
            val=validation_summary(self.validation),
        )


@dataclass
class Epoch:
    """Sums over the updates of one epoch so far."""

    windows: int = 0
    loss: float = 0.0  # Σ loss over windows
    norm: float = 0.0  # Σ gradient norm of the applied updates, before clipping
    applied: int = 0
    skipped: int = 0
    seconds: float = 0.0
    out_of_memory: int = 0


@dataclass
class State:
    """The progress of a training, beside its model, optimizer, scaler and random generators."""

    batch_size: int  # windows to a forward pass; halved where memory runs out
    update: int = 0  # applied updates so far, and so the number of the next one
    epoch: int = 1
    position: int = 0  # groups of this epoch that have been used
    start_loss: float | None = None  # of the initial model, where that is validated
    best_loss: float = math.inf
    best_epoch: int = 0
    patient_since: int = 0  # the epoch from which early stopping counts
    stopped: bool = False
    skipped: int = 0
    windows: int = 0
    seconds: float = 0.0
    out_of_memory: int = 0
    sums: Epoch = field(default_factory=Epoch)

    @property
    def where(self) -> str:
        """Return the progress of the training, for messages."""
        return f"epoch {self.epoch}, update {self.update}"

    def load(self, saved: dict[str, Any]) -> None:
        """Take the values of another state, as `dataclasses.asdict` made them."""
        for name, value in {**saved, "sums": Epoch(**saved["sums"])}.items():
            setattr(self, name, value)

    def announce_shortage(self, message: str) -> None:
        """Count a memory shortage, and warn of its remedy."""
        self.sums.out_of_memory += 1
        warnings.warn(message, stacklevel=2)

    def judge(self, loss: float, patience: int | None, *, too_early: bool) -> bool:
        """Compare a validation with the best one so far, and stop where patience has run out.

        Args:
            loss: of the validation.
            patience: epochs without improvement before stopping; None for no early end.
            too_early: whether this epoch can neither be the best one nor count against the patience.

        Returns:
            Whether it is the best one.
        """
        best = not too_early and loss < self.best_loss
        if best:
            self.best_loss, self.best_epoch = loss, self.epoch
        if best or too_early:
            self.patient_since = self.epoch
        self.stopped = patience is not None and self.epoch - self.patient_since >= patience
        return best

    def next_epoch(self) -> None:
        """Add the epoch's sums to those of the training, and begin the next epoch."""
        self.skipped += self.sums.skipped
        self.windows += self.sums.windows
        self.seconds += self.sums.seconds
        self.out_of_memory += self.sums.out_of_memory
        self.epoch, self.position, self.sums = self.epoch + 1, 0, Epoch()

    def result(self, validation: Validation, best_epoch: int) -> Training:
        """Return the result of the training, given its best epoch and that epoch's validation."""
        rate = self.windows / self.seconds
        return Training(
            self.update, self.skipped, rate, best_epoch, validation, self.batch_size, self.out_of_memory, start_loss=self.start_loss
        )
