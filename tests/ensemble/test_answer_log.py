"""Answers written down: a row for each bar, member and step, none lost by a restart, one table in the end."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.helpers import BEGIN, MINUTE
from tftq.ensemble.answer_log import AnswerLog, answers_schema, as_document
from tftq.ensemble.answers import Answer
from tftq.ensemble.ensemble import BarAnswers, Reply
from tftq.errors import EnsembleError

LEVELS = (0.1, 0.25, 0.5, 0.9)


def at(bar: int) -> BarAnswers:
    """Two forecasters of other levels, an agent, one that failed, and the ensemble."""
    near = Answer.of_forecast(bar + np.array([[1, 2, 3], [0, 1, 4]]), (0.1, 0.5, 0.9))
    other = Answer.of_forecast([[-2.0, -1.0]], (0.25, 0.5))
    said = (Reply("near", "ok", near), Reply("other", "ok", other), Reply("agent", "ok", Answer(-1.0)), Reply("bad", "failed"))
    return BarAnswers(BEGIN + MINUTE * bar, bar // 2, 4000.25 + bar, (*said, Reply("ensemble", "ok", Answer(0.5))))


def test_rows_by_hand(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, LEVELS)
    log.add(at(0))
    table = pq.read_table(log.finish())
    assert table.schema.equals(answers_schema(LEVELS)) and log.rows == table.num_rows == 6
    assert table["time"].cast("int64").to_pylist() == [BEGIN] * 6
    assert table["member"].to_pylist() == ["near", "near", "other", "agent", "bad", "ensemble"]
    assert table["step"].to_pylist() == [1, 2, 1, 0, 0, 0]
    assert table["position"].to_pylist() == [1, 1, -1, -1, None, 0.5]
    assert table["P10"].to_pylist() == [1, 0, None, None, None, None]
    assert table["P25"].to_pylist() == [None, None, -2, None, None, None]
    assert table["P50"].to_pylist() == [2, 1, -1, None, None, None]
    assert table["state"].to_pylist() == ["ok", "ok", "ok", "ok", "failed", "ok"]
    assert table["close"].to_pylist() == [4000.25] * 6


def test_a_line_of_json_says_the_same() -> None:
    document = json.loads(json.dumps(as_document(at(0))))
    assert document == {
        "time": "2024-01-08T00:00:00Z",
        "segment": 0,
        "close": 4000.25,
        "ensemble": {"state": "ok", "position": 0.5},
        "members": {
            "near": {"state": "ok", "position": 1.0, "P10": [1.0, 0.0], "P50": [2.0, 1.0], "P90": [3.0, 4.0]},
            "other": {"state": "ok", "position": -1.0, "P25": [-2.0], "P50": [-1.0]},
            "agent": {"state": "ok", "position": -1.0},
            "bad": {"state": "failed"},
        },
    }


def whole(tmp_path: Path, bars: int) -> bytes:
    folder = tmp_path / f"whole{bars}"
    folder.mkdir()
    log = AnswerLog(folder, LEVELS)
    for bar in range(bars):
        log.add(at(bar))
    return log.finish().read_bytes()


def test_what_no_state_knows_is_written_anew(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, LEVELS)
    for bar in range(5):
        log.add(at(bar))
    log.close()  # the state was written after three bars
    log = AnswerLog(tmp_path, LEVELS, rows=18)
    for bar in range(3, 6):
        log.add(at(bar))
    assert log.rows == 36 and log.finish().read_bytes() == whole(tmp_path, 6)
    assert not (tmp_path / "answers.arrows").exists()


def test_a_run_that_came_to_its_end_goes_on(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, LEVELS)
    log.add(at(0))
    log.finish()
    log = AnswerLog(tmp_path, LEVELS, rows=6)
    log.add(at(1))
    assert log.finish().read_bytes() == whole(tmp_path, 2)


def test_a_log_that_lacks_rows_is_refused(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, LEVELS)
    log.add(at(0))
    log.close()
    with pytest.raises(EnsembleError, match=r"answers\.arrows: holds 6 rows of the 12 that were written; begin anew"):
        AnswerLog(tmp_path, LEVELS, rows=12)


@pytest.mark.parametrize("left", [0, 5, 100, 700, -300, -100, -9])
def test_a_log_that_was_cut_short_anywhere_is_refused(tmp_path: Path, left: int) -> None:
    log = AnswerLog(tmp_path, LEVELS)
    log.add(at(0))
    log.close()
    path = tmp_path / "answers.arrows"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(EnsembleError, match=r"answers\.arrows: holds 0 rows of the 6 that were written; begin anew"):
        AnswerLog(tmp_path, LEVELS, rows=6)


def test_what_was_flushed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr("os.fsync", lambda file: sizes.append(os.fstat(file).st_size))
    log = AnswerLog(tmp_path, LEVELS)
    log.add(at(0))
    log.flush()
    log.close()
    assert sizes == [(tmp_path / "answers.arrows").stat().st_size]


def test_answers_that_are_gone_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnsembleError, match=r"answers\.parquet: is not there, nor answers\.arrows, of 6 rows; begin anew"):
        AnswerLog(tmp_path, LEVELS, rows=6)
    (tmp_path / "answers.parquet").write_bytes(b"PAR1")
    with pytest.raises(EnsembleError, match=r"answers\.parquet: cannot be read \(.*; begin anew"):
        AnswerLog(tmp_path, LEVELS, rows=6)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]
