import pytest

from tftq.console import PIPED_WIDTH, stdout_console


def test_a_pipe_is_wide_enough_for_a_long_line(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console().print("word " * (PIPED_WIDTH // 5))
    assert capsys.readouterr().out.count("\n") == 1


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console(quiet=True).print("word")
    assert capsys.readouterr().out == ""
