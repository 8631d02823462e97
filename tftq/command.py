"""How every command ends: its exit status, and what went wrong in a line on standard error."""

import sys
import warnings
from collections.abc import Callable

from tftq.errors import RecipeError, TftqError

FAILED, REFUSED = 1, 2
INTERRUPTED = 130  # as shells have it of a program stopped by Ctrl-C


def exit_status(command: Callable[[], int], *, refused: tuple[type[Exception], ...] = (RecipeError,), advice: str = "") -> int:
    """Do what a command does; warnings and errors for users go to standard error, everything else is raised.

    Args:
        command: does it and returns its exit status.
        refused: the errors of what the command was given, before any others.
        advice: what to add where Ctrl-C interrupts it.

    Returns:
        The command's status, or 2 where it refused what it was given, 1 where it failed, 130 on Ctrl-C.
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        try:
            return command()
        except refused as error:
            print(f"error: {error}", file=sys.stderr)
            return REFUSED
        except (TftqError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt as interruption:
            notes = "".join(f" ({note})" for note in getattr(interruption, "__notes__", ()))
            print(f"interrupted{notes}{advice}", file=sys.stderr)
            return INTERRUPTED
