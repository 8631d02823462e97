import io

import pytest
from rich.console import Console

from tftq.console import KEPT, PIPED_WIDTH, Teller, stderr_console, stdout_console


def test_a_pipe_is_wide_enough_for_a_long_line(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console().print("word " * (PIPED_WIDTH // 5))
    assert capsys.readouterr().out.count("\n") == 1


def test_standard_error_is_as_wide(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_console().print("word " * (PIPED_WIDTH // 5))
    streams = capsys.readouterr()
    assert streams.err.count("\n") == 1 and streams.out == ""


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console(quiet=True).print("word")
    assert capsys.readouterr().out == ""


def test_what_is_told_is_kept_once_and_not_without_end() -> None:
    tell = Teller(Console(file=io.StringIO(), width=20))
    for sentence in ("a longer sentence than the console is wide, [1, 2]", "again", "again", *map(str, range(200))):
        tell(sentence)
    assert isinstance(tell.console.file, io.StringIO)
    lines = tell.console.file.getvalue().splitlines()
    assert lines[:3] == ["  a longer sentence than the console is wide, [1, 2]", "  again", "  again"] and len(lines) == 203
    assert tell.told[:3] == ["a longer sentence than the console is wide, [1, 2]", "again", "0"] and len(tell.told) == KEPT
