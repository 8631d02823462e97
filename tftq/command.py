"""How every command ends: its exit status, and what went wrong in a line on standard error."""

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from tftq.errors import RecipeError, TftqError

FAILED, REFUSED = 1, 2
INTERRUPTED, UNREAD = 130, 141  # as shells have it of a program stopped by Ctrl-C, or by a pipe that nobody reads any more


def exit_status(command: Callable[[], int], *, refused: tuple[type[Exception], ...] = (RecipeError,), advice: str = "") -> int:
    """Do what a command does; warnings and errors for users go to standard error, everything else is raised.

    Args:
        command: does it and returns its exit status.
        refused: the errors of what the command was given, before any others.
        advice: what to add where Ctrl-C interrupts it, or the end of whoever read its output.

    Returns:
        The command's status, or 2 where it refused what it was given, 1 where it failed, 130 on Ctrl-C, 141 where nobody reads its
        output any more.
    """
    with warnings.catch_warnings():
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
            print(f"interrupted{notes}{advice}", file=sys.stderr)
            return INTERRUPTED
