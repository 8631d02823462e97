"""Standard output for people, in a terminal or not."""

from rich.console import Console

PIPED_WIDTH = 140  # characters, where there is no terminal to ask; enough for every table


def stdout_console(*, quiet: bool = False) -> Console:
    """A console on standard output, as wide as its terminal, or wide enough for files and pipes."""
    console = Console(quiet=quiet)
    return console if console.is_terminal else Console(quiet=quiet, width=PIPED_WIDTH)
