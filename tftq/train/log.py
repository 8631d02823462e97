"""Report a training's progress: metrics.jsonl, a line per epoch, and a progress bar where standard error is a terminal."""

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.optim import Optimizer

from tftq.evaluate.metrics import Validation
from tftq.spec.units import MIB
from tftq.train.state import State


class TrainingBar:
    """Shows epoch, loss, learning rate and memory in use during training.

    Args:
        title: of the training.
        epochs: epochs in all.
        updates: updates per epoch.
        device: the device whose memory is shown: the allocator's on CUDA, the process's own elsewhere.
        console: the console to write to; standard error by default.
    """

    def __init__(self, title: str, epochs: int, updates: int, device: torch.device, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[status]}")
        self._progress = Progress(
            *(TextColumn(column) if isinstance(column, str) else column for column in columns),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._title, self._epochs, self._updates, self._device = title, epochs, updates, device
        self._task = self._progress.add_task(title, status="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def start_epoch(self, epoch: int, position: int) -> None:
        """Begin an epoch's bar at update number `position`."""
        title = f"{self._title} {epoch}/{self._epochs}"
        self._progress.reset(self._task, description=title, total=self._updates, completed=position, status="")

    def update(self, loss: float, lr: float) -> None:
        """Count one update."""
        if not self._progress.disable:
            whose = "GPU" if self._device.type == "cuda" else "process"
            status = f"loss {loss:.4g}  lr {lr:.3g}  {whose} {_memory_in_use(self._device) / MIB:,.0f} MiB"
            self._progress.update(self._task, advance=1, status=status)

    def print_line(self, words: str) -> None:
        """Print a permanent line, on a terminal or not."""
        self._progress.console.print(words, highlight=False, soft_wrap=True)

    def start_validation(self, windows: int) -> None:
        """Begin the bar of a validation."""
        self._progress.reset(self._task, description=f"{self._title}: validating", total=windows, completed=0, status="")

    def validated(self, windows: int) -> None:
        """Count windows that have been validated."""
        self._progress.advance(self._task, windows)


class MetricsFile:
    """metrics.jsonl: one JSON document per epoch.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, state: State, validation_batch: int, optimizer: Optimizer, validation: Validation | None) -> None:
        """Add the line of the current epoch.

        Args:
            state: of the training.
            validation_batch: windows validated together.
            optimizer: holds the learning rates of the last update.
            validation: of the epoch, where it was validated.
        """
        sums = state.sums
        line = {
            "epoch": state.epoch,
            "updates": state.update,
            "skipped": sums.skipped,
            "batch_size": state.batch_size,
            "validation_batch_size": validation_batch,
            "out_of_memory": sums.out_of_memory,
            "train_loss": sums.loss / sums.windows,
            "grad_norm": sums.norm / sums.applied if sums.applied else None,
            "lr": {group["name"]: float(group["lr"]) for group in optimizer.param_groups},
            "samples_per_s": sums.windows / sums.seconds,
            "val": None if validation is None else asdict(validation),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def truncate(self, epochs: int) -> None:
        """Drop the lines after the first `epochs` epochs: the others will be trained again."""
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            self.path.write_text("".join(lines[:epochs]), encoding="utf-8")


def describe_epoch(title: str, epochs: int, state: State, validation: Validation | None) -> str:
    """Describe the current epoch in one line.

    Args:
        title: of the training.
        epochs: in all.
        state: of the training.
        validation: of the epoch, where it was validated.
    """
    sums = state.sums
    validated = "" if validation is None else f", validation loss {validation.loss:.4g}"
    loss, rate = sums.loss / sums.windows, sums.windows / sums.seconds
    return f"{title} {state.epoch}/{epochs}: loss {loss:.4g}{validated}, {rate:.0f} windows/s"


def _memory_in_use(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
