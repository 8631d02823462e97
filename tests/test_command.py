"""How commands end: their exit status, and what stands on standard error."""

import os
import subprocess
import sys
import warnings

import pytest

from tftq.command import exit_status
from tftq.errors import CompareError, DataError, RecipeError


@pytest.mark.parametrize(
    ("error", "refused", "status"),
    [
        (RecipeError("no hidden"), (RecipeError,), 2),
        (DataError("no bar"), (RecipeError,), 1),
        (OSError("disk full"), (RecipeError,), 1),
        (CompareError("no run"), (RecipeError, CompareError), 2),
        (OSError("disk full"), (OSError,), 2),
    ],
)
def test_errors_for_users_are_a_line_and_a_status(
    error: Exception, refused: tuple[type[Exception], ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    assert exit_status(command, refused=refused) == status
    streams = capsys.readouterr()
    assert streams.err == f"error: {error}\n" and streams.out == ""


def test_faults_of_our_own_are_raised() -> None:
    def command() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_status(command)


def test_ctrl_c_says_where_it_was_and_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        error = KeyboardInterrupt()
        error.add_note("epoch 2")
        raise error

    assert exit_status(command, advice=": go on") == 130
    assert capsys.readouterr().err == "interrupted (epoch 2): go on\n"


@pytest.mark.parametrize("told", ["print('two lines')", "stdout_console().print('two lines')"])
@pytest.mark.parametrize(("advice", "error"), [("", ""), (": go on", "stopped, for nobody reads the output any more: go on\n")])
def test_a_reader_that_leaves_ends_a_command_quietly(told: str, advice: str, error: str) -> None:
    code = (
        "import sys; from tftq.command import exit_status; from tftq.console import stdout_console\n"
        f"sys.exit(exit_status(lambda: {told} or 0, refused=(OSError,), advice={advice!r}))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, error)


def test_warnings_are_told_and_the_status_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        warnings.warn("has no effect", stacklevel=1)
        return 1

    assert exit_status(command) == 1
    assert capsys.readouterr().err == "warning: has no effect\n"
