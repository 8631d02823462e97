"""A progress bar on standard error for people who watch; nothing at all where it is no terminal."""

from types import TracebackType
from typing import Self

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tftq.spec.units import MIB


class TrainingBar:
    """Shows epoch, loss, learning rate and memory in use while updates go by.

    Args:
        title: what is being trained.
        epochs: epochs in all.
        updates: updates to one epoch.
        device: whose memory is shown: the allocator's on CUDA, the process's own elsewhere.
        console: where to write; standard error by default.
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

    def tell(self, words: str) -> None:
        """Print a line that stays, terminal or not."""
        self._progress.console.print(words, highlight=False, soft_wrap=True)

    def start_validation(self, windows: int) -> None:
        """Begin the bar of a validation."""
        self._progress.reset(self._task, description=f"{self._title}: validating", total=windows, completed=0, status="")

    def validated(self, windows: int) -> None:
        """Count windows that have been validated."""
        self._progress.advance(self._task, windows)


def _memory_in_use(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
