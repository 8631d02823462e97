"""How every command ends: its exit status, and what went wrong in a line on standard error."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tftq.errors import RecipeError, TftqError

FAILED, REFUSED = 1, 2
# As shells have it of a program stopped by Ctrl-C, by a pipe that nobody reads any more, or by SIGTERM.
INTERRUPTED, UNREAD, TERMINATED = 130, 141, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `kill` and service managers send: it ends a command as Ctrl-C does."""


def exit_status(command: Callable[[], int], *, refused: tuple[type[Exception], ...] = (RecipeError,), advice: str = "") -> int:
    """Do what a command does; warnings and errors for users go to standard error, everything else is raised.

    Args:
        command: does it and returns its exit status.
        refused: the errors of what the command was given, before any others.
        advice: what to add where Ctrl-C or SIGTERM interrupts it, or the end of whoever read its output.

    Returns:
        The command's status, or 2 where it refused what it was given, 1 where it failed, 130 on Ctrl-C, 143 on SIGTERM, 141 where
        nobody reads its output any more.
    """
    with warnings.catch_warnings(), _terminable():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        try:
            status = command()
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that what is left to be written fails no more
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
        except KeyboardInterrupt as interruption:
            notes = "".join(f" ({note})" for note in getattr(interruption, "__notes__", ()))
            terminated = isinstance(interruption, Terminated)
            print(f"{'terminated' if terminated else 'interrupted'}{notes}{advice}", file=sys.stderr)
            return TERMINATED if terminated else INTERRUPTED


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, unless it is ignored or somebody else handles it; elsewhere than in the main thread it cannot."""

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
