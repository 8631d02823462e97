"""Checkpoints of a training: a resumed one equals an uninterrupted one bit for bit, and another training is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from tftq.errors import CheckpointError
from tftq.evaluate.metrics import Validation
from tftq.train.checkpoint import load_checkpoint, load_model, random_state, save_checkpoint
from tftq.train.sampler import Sampler
from tftq.train.schedule import Schedule
from tftq.train.state import State
from tftq.train.validate import Validator


class Resumable(NamedTuple):
    """The changing state of a training that a checkpoint must hold, beside the random generators."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler
    state: State
    validator: Validator


class Checkpoints:
    """checkpoints/last.pt, from which a training resumes, and checkpoints/best.pt, the weights that it ends with.

    Args:
        folder: of the training; made where missing.
        recipe: the text of the recipe, kept in both files.
        identity: must be the same for last.pt to be resumed, see `identity`.
    """

    def __init__(self, folder: Path, recipe: str, identity: Mapping[str, Sequence[str]]) -> None:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.last, self.best = folder / "checkpoints" / "last.pt", folder / "checkpoints" / "best.pt"
        self._recipe, self._identity = recipe, identity
        self._saved: tuple[int, int] | None = None  # epoch and update of last.pt

    @property
    def resume_point(self) -> str:
        """Return where a resumed training begins, as a phrase."""
        return "from its beginning" if self._saved is None else "at epoch {}, update {}".format(*self._saved)

    def save_best(self, model: nn.Module, validation: Validation, epoch: int) -> None:
        """Save a model as the best one so far."""
        content = {"recipe": self._recipe, "model": model.state_dict(), "epoch": epoch, "validation": asdict(validation)}
        save_checkpoint(self.best, content)

    def load_best(self, model: nn.Module) -> tuple[Validation, int]:
        """Load the best weights into a model; returns their validation and their epoch."""
        content = load_checkpoint(self.best)
        load_model(model, content, self.best)
        return Validation(**content["validation"]), content["epoch"]

    def save_last(self, training: Resumable) -> None:
        """Save everything needed to resume a training."""
        content = {
            "recipe": self._recipe,
            "plan": self._identity,
            "model": training.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "scaler": training.scaler.state_dict(),
            "state": asdict(training.state),
            "validator": training.validator.state_dict(),
            "random": random_state(),
        }
        save_checkpoint(self.last, content)
        self._saved = (training.state.epoch, training.state.update)

    def load_last(self, training: Resumable) -> dict[str, Any]:
        """Load last.pt into a training.

        Returns:
            The state of the random generators, for `restore_random_state` right before training continues.

        Raises:
            CheckpointError: it is missing, damaged, or of another model, data or schedule.
        """
        content = load_checkpoint(self.last)
        self._refuse_another(content["plan"])
        load_model(training.model, content, self.last)
        training.optimizer.load_state_dict(content["optimizer"])
        training.scaler.load_state_dict(content["scaler"])
        training.state.load(content["state"])
        training.validator.load_state_dict(content["validator"])
        self._saved = (training.state.epoch, training.state.update)
        random: dict[str, Any] = content["random"]
        return random

    def _refuse_another(self, saved: dict[str, list[str]]) -> None:
        changed = [
            line
            for name, now in self._identity.items()
            for line in unified_diff(saved[name], now, f"{name} then", f"{name} now", lineterm="", n=0)
        ]
        if changed:
            advice = "of another training; resume with the recipe and data it began with, or train anew"
            raise CheckpointError("\n".join([f"{self.last}: {advice}", *changed]))


def identity(data: str, device: str, sampler: Sampler, schedule: Schedule, optimizer: Optimizer) -> dict[str, list[str]]:
    """Describe a training in lines: two trainings of the same lines go through the same updates.

    Args:
        data: the fingerprint of the data.
        device: the type of the device.
        sampler: the order of the windows.
        schedule: the learning rate's course.
        optimizer: its param groups.
    """
    return {
        "data": [f"data: {data}"],
        "windows": [f"{name}: {value}" for name, value in vars(sampler).items()],
        "device": [device],
        "schedule": [f"{name}: {value}" for name, value in asdict(schedule).items()],
        "param groups": [f"{group['name']}: lr {group['base_lr']}, {len(group['params'])} parameters" for group in optimizer.param_groups],
    }
