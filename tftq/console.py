"""The output and the end of a command: lines and tables, warnings and errors on standard error, and the exit status."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from tftq.errors import RecipeError, TftqError
from tftq.spec.extras import explain_missing

if TYPE_CHECKING:
    from rich.console import RenderableType

# rich takes 40 ms and 8 MB; it is imported by the first table or styled line that is printed, so that light commands need not pay for it.

PIPED_WIDTH = 140  # characters, where there is no terminal to ask; enough for every table
KEPT_MESSAGES = 100  # a run of months may print any number of them

FAILED, REFUSED = 1, 2
# As shells report a program stopped by Ctrl-C, by a pipe that nobody reads any more, or by SIGTERM.
INTERRUPTED, UNREAD, TERMINATED = 130, 141, 143


class Console:
    """Prints lines as they are, and tables.

    Args:
        file: where to; standard output by default.
        width: characters to a line of a table; by default the terminal's, or `PIPED_WIDTH` where there is none.
        quiet: print nothing.
    """

    def __init__(self, file: TextIO | None = None, *, width: int | None = None, quiet: bool = False) -> None:
        self.file = sys.stdout if file is None else file
        self._width, self._quiet = width, quiet

    def print_line(self, text: str, *, style: str | None = None) -> None:
        """Print text unchanged: no markup is read from it, and no line is broken.

        Args:
            text: a line, or several.
            style: of rich, such as bold; only on a terminal.
        """
        if self._quiet:
            return
        if style is None or not self.file.isatty():
            print(text, file=self.file, flush=True)
        else:
            from rich.text import Text

            self._render(Text(text, style), soft_wrap=True)

    def print_table(self, table: "RenderableType") -> None:
        """Print a table of rich."""
        if not self._quiet:
            self._render(table, soft_wrap=False)

    def _render(self, renderable: "RenderableType", *, soft_wrap: bool) -> None:
        """Render by rich, and write the text here: rich would end the process where a pipe is closed."""
        from rich.console import Console as RichConsole

        width = self._width or (None if self.file.isatty() else PIPED_WIDTH)
        console = RichConsole(file=self.file, width=width, markup=False, emoji=False, highlight=False)  # names of the data are data
        with console.capture() as rendered:
            console.print(renderable, soft_wrap=soft_wrap)
        print(rendered.get(), end="", file=self.file, flush=True)


class Messages:
    """Prints messages, and keeps the first of them.

    Args:
        console: where to print.

    Attributes:
        kept: the messages so far, each once, at most `KEPT_MESSAGES`.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.kept: list[str] = []

    def __call__(self, message: str) -> None:
        """Print a message."""
        if message not in self.kept and len(self.kept) < KEPT_MESSAGES:
            self.kept.append(message)
        self.console.print_line(f"  {message}")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `kill` and service managers send: it ends a command as Ctrl-C does."""


def exit_status(command: Callable[[], int], *, refused: tuple[type[Exception], ...] = (RecipeError,), advice: str = "") -> int:
    """Run a command; print warnings and errors meant for users on standard error, and raise everything else.

    Args:
        command: does the work and returns its exit status.
        refused: errors of the command's input; they take precedence over other errors.
        advice: added to the message where Ctrl-C, SIGTERM or a closed pipe interrupts the command.

    Returns:
        The command's status, or 2 where it refused its input, 1 where it failed, 130 on Ctrl-C, 143 on SIGTERM, 141 where
        nobody reads its output any more.
    """
    with warnings.catch_warnings(), _terminable():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        try:
            status = command()
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that buffered text can be written
            if advice:
                with suppress(BrokenPipeError):  # where both streams go down that pipe
                    print(f"stopped, for nobody reads the output any more{advice}", file=sys.stderr)
            return UNREAD
        except refused as error:
            print(f"error: {error}", file=sys.stderr)
            return REFUSED
        except (TftqError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except ModuleNotFoundError as error:
            if (line := explain_missing(error)) is None:
                raise
            print(f"error: {line}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt as interruption:
            notes = "".join(f" ({note})" for note in getattr(interruption, "__notes__", ()))
            terminated = isinstance(interruption, Terminated)
            print(f"{'terminated' if terminated else 'interrupted'}{notes}{advice}", file=sys.stderr)
            return TERMINATED if terminated else INTERRUPTED


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, unless it is ignored or handled already; only the main thread can."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
