"""How commands speak and end: lines, tables, exit statuses, and what stands on standard error."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from rich.table import Table

from tftq.console import KEPT_MESSAGES, PIPED_WIDTH, Console, Messages, exit_status
from tftq.errors import CompareError, DataError, RecipeError


def test_lines_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vwap[/lot] and [bold], :smile:, " + "word " * PIPED_WIDTH
    Console().print_line(line)
    Console(sys.stderr).print_line(line, style="bold")
    streams = capsys.readouterr()
    assert streams.out == streams.err == f"{line}\n"


def test_a_styled_line_keeps_its_text_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    Console(terminal, width=20).print_line("vwap[/lot] is wider than twenty", style="bold")
    assert "vwap[/lot] is wider than twenty" in terminal.getvalue()


def test_tables_fit_a_pipe_and_print_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", *(str(number) for number in range(20)), title="[/title]")
    table.add_row("vwap[/lot]")
    Console().print_table(table)
    found = capsys.readouterr().out
    assert "vwap[/lot]" in found and "[/title]" in found and max(map(len, found.splitlines())) <= PIPED_WIDTH
    Console(width=300).print_table(Table("column " * 40))
    assert "column " * 40 in capsys.readouterr().out


def test_a_quiet_console_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Console(quiet=True).print_line("word")
    Console(quiet=True).print_table(Table("word"))
    assert capsys.readouterr().out == ""


def test_lines_do_not_import_rich() -> None:
    code = "import sys; from tftq.console import Console; Console().print_line('line', style='bold'); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "line\nFalse\n"


def test_messages_are_kept_once_and_not_without_end() -> None:
    file = io.StringIO()
    messages = Messages(Console(file, width=20))
    for message in ("a longer message than the console is wide, [1, 2]", "again", "again", *map(str, range(200))):
        messages(message)
    lines = file.getvalue().splitlines()
    assert lines[:3] == ["  a longer message than the console is wide, [1, 2]", "  again", "  again"] and len(lines) == 203
    assert messages.kept[:3] == ["a longer message than the console is wide, [1, 2]", "again", "0"] and len(messages.kept) == KEPT_MESSAGES


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
from tftq.console import exit_status
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


@pytest.mark.parametrize("told", ["print('two lines')", "Console().print_line('two lines')"])
@pytest.mark.parametrize(("advice", "error"), [("", ""), (": go on", "stopped, for nobody reads the output any more: go on\n")])
def test_a_reader_that_leaves_ends_a_command_quietly(told: str, advice: str, error: str) -> None:
    code = (
        "import sys; from tftq.console import Console, exit_status\n"
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
