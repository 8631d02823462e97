"""Standard output for people, in a terminal or not."""

from rich.console import Console

PIPED_WIDTH = 140  # characters, where there is no terminal to ask; enough for every table
KEPT = 100  # sentences; a run that goes on for months may tell of any number


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command how it ends, see `tftq.command`."""
        raise BrokenPipeError


def stdout_console(*, quiet: bool = False) -> Console:
    """A console on standard output, as wide as its terminal, or wide enough for files and pipes."""
    return _wide_enough(quiet=quiet)


def stderr_console(*, quiet: bool = False) -> Console:
    """The same on standard error, where standard output carries something else."""
    return _wide_enough(quiet=quiet, stderr=True)


def _wide_enough(*, quiet: bool = False, stderr: bool = False) -> Console:
    console = _Console(quiet=quiet, stderr=stderr)
    return console if console.is_terminal else _Console(quiet=quiet, stderr=stderr, width=PIPED_WIDTH)


class Teller:
    """Tells a user sentences, and keeps the first of them.

    Args:
        console: where to.

    Attributes:
        told: the sentences so far, at most `KEPT`, each once.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.told: list[str] = []

    def __call__(self, sentence: str) -> None:
        """Tell one."""
        if sentence not in self.told and len(self.told) < KEPT:
            self.told.append(sentence)
        self.console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
