"""How commands end: their exit status, and what stands on standard error."""

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

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


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from tftq.command import exit_status
from tftq.jobs.folder import RunFolder

def command():
    with RunFolder(Path({str(tmp_path)!r})).recording(name="first"):
        print("going", flush=True)
        time.sleep(60)

sys.exit(exit_status(command, advice=": go on"))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "going\n"
        process.terminate()
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (143, "terminated: go on\n")
    assert json.loads((tmp_path / "summary.json").read_text()) == {"name": "first", "status": "stopped: Terminated"}


def test_sigterm_is_left_to_whoever_handles_it_and_is_given_back() -> None:
    during: list[object] = []

    def command() -> int:
        during.append(signal.getsignal(signal.SIGTERM))
        return 0

    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGTERM, handler)
            assert exit_status(command) == 0 and signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert callable(during[0]) and during[0] is not signal.SIG_DFL and during[1] is signal.SIG_IGN
    thread = threading.Thread(target=lambda: during.append(exit_status(lambda: 5)))  # where no handler can be set
    thread.start()
    thread.join()
    assert during[2] == 5


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
