"""An ensemble that was stopped goes on to the answers that it would have given."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.data.helpers import BEGIN, MINUTE, bar_columns, take, write
from tests.ensemble.models import forecaster, trio
from tests.ensemble.runs import answers_of, as_json, quietly, recipe_of
from tftq.console import Console
from tftq.ensemble.checkpoint import read
from tftq.ensemble.ensemble import Ensemble
from tftq.ensemble.job import run
from tftq.ensemble.recipe import RuleRecipe
from tftq.errors import DataError, EnsembleError, RunFolderError
from tftq.jobs.folder import begun_by

COLUMNS = take(bar_columns(50), np.r_[0:24, 26:50])  # two segments


@pytest.fixture
def members(tmp_path: Path) -> dict[str, Path]:
    return trio(tmp_path)


@pytest.mark.parametrize("cut", [10, 33])  # while warming up, and with a segment behind it
def test_a_stream_that_was_restarted_gives_the_same_answers(tmp_path: Path, members: dict[str, Path], cut: int) -> None:
    lines = as_json(COLUMNS)
    _, _, unbroken = quietly(recipe_of(tmp_path / "whole", "-", members), lines=lines)

    def cut_off() -> Iterable[str]:
        yield from lines[:cut]
        raise KeyboardInterrupt

    recipe, before, after = recipe_of(tmp_path / "cut", "-", members), io.StringIO(), io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run(recipe, console=Console(file=io.StringIO()), lines=cut_off(), answers=before)
    assert not (tmp_path / "cut" / "answers.parquet").exists()
    assert json.loads((tmp_path / "cut" / "summary.json").read_text()) == {"name": "test", "status": "stopped: KeyboardInterrupt"}
    summary = run(
        recipe, resume=True, console=Console(file=io.StringIO()), lines=lines[cut - 3 :], answers=after
    ).as_dict()  # some come again
    assert before.getvalue() + after.getvalue() == unbroken
    assert answers_of(tmp_path / "cut").equals(answers_of(tmp_path / "whole"))
    assert summary["bars"] == 48 and summary["members"]["far"]["states"] == {"warming up": 32, "ok": 16}


def test_a_file_that_was_cut_off_goes_on_from_its_last_state(
    tmp_path: Path, members: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "ES.parquet", COLUMNS)
    quietly(recipe_of(tmp_path / "whole", path, members, save_every=7))
    recipe = recipe_of(tmp_path / "cut", path, members, save_every=7)
    answer, asked = Ensemble.answer, []

    def dies(self: Ensemble, market: Any) -> Any:
        asked.append(market.time)
        if len(asked) == 25:
            raise KeyboardInterrupt
        return answer(self, market)

    monkeypatch.setattr(Ensemble, "answer", dies)
    with pytest.raises(KeyboardInterrupt):
        quietly(recipe)
    summary, told, _ = quietly(recipe, resume=True)
    assert "resumes after 21 bars" in told and asked[25] == asked[21] and summary["bars"] == 48
    assert answers_of(tmp_path / "cut").equals(answers_of(tmp_path / "whole"))


def test_a_run_that_came_to_its_end_goes_on_when_there_are_more_bars(tmp_path: Path, members: dict[str, Path]) -> None:
    path = write(tmp_path / "ES.parquet", COLUMNS)
    quietly(recipe_of(tmp_path / "whole", path, members))
    growing = tmp_path / "growing.parquet"
    write(growing, take(COLUMNS, slice(0, 30)))
    quietly(recipe_of(tmp_path / "out", growing, members))
    write(growing, COLUMNS)
    summary, _, _ = quietly(recipe_of(tmp_path / "out", growing, members), resume=True)
    assert summary["bars"] == 48 and answers_of(tmp_path / "out").equals(answers_of(tmp_path / "whole"))


def test_the_newest_bars_of_a_file_that_grew_are_answered_without_a_gap(tmp_path: Path, members: dict[str, Path]) -> None:
    """Twelve more bars than the five that the recipe asks for: the seven between are answered, and nobody warms up anew."""
    columns, growing = bar_columns(90), tmp_path / "growing.parquet"
    write(growing, take(columns, slice(0, 78)))
    recipe = recipe_of(tmp_path / "out", {"path": growing, "last": 5}, members)
    assert quietly(recipe)[0]["bars"] == 5
    write(growing, columns)
    summary, _, _ = quietly(recipe, resume=True)
    assert summary["bars"] == 17 and summary["states"] == {"ok": 17}
    assert summary["resumed_after_bars"] == 5 and summary["latency_ms"]["bars"] == 12
    quietly(recipe_of(tmp_path / "whole", {"path": growing, "last": 17}, members))
    assert answers_of(tmp_path / "out").equals(answers_of(tmp_path / "whole"))


def test_a_state_goes_to_no_other_model(tmp_path: Path, members: dict[str, Path]) -> None:
    recipe = recipe_of(tmp_path / "out", "-", members)
    quietly(recipe, lines=as_json(COLUMNS)[:5])
    with pytest.raises(RunFolderError, match="is not empty"):
        quietly(recipe, lines=[])
    forecaster(members["near"], seed=9)
    with pytest.raises(EnsembleError, match=r"the state is of other models than those there are now: near; begin anew"):
        quietly(recipe, lines=[], resume=True)
    np.savez(tmp_path / "out" / "state.npz", notes=np.array('{"format": 1}'))
    with pytest.raises(EnsembleError, match=r"state\.npz: was written by another version of tftq; use that one, or begin anew"):
        quietly(recipe, lines=[], resume=True)
    for damaged in (b"PK", b""):
        (tmp_path / "out" / "state.npz").write_bytes(damaged)
        with pytest.raises(EnsembleError, match=r"state\.npz: cannot be read"):
            quietly(recipe, lines=[], resume=True)


def test_a_member_that_was_given_up_is_asked_again_after_a_restart(tmp_path: Path) -> None:
    """It fails where bars rise: given up after ten, and mended by two that fall, the first of them after the restart."""
    columns = {name: values[:40].astype(float) for name, values in bar_columns(40).items() if name != "ts_event"}
    columns |= {"open": columns["close"] - 1, "low": columns["low"] - 2, "ts_event": BEGIN + MINUTE * np.arange(40)}
    columns["open"][25:27] = columns["close"][25:27]
    members = {"bad": forecaster(tmp_path / "bad.onnx", fault="raise"), "good": forecaster(tmp_path / "good.onnx")}
    lines = as_json(columns)
    quietly(recipe_of(tmp_path / "whole", "-", members), lines=lines)
    first, told, _ = quietly(recipe_of(tmp_path / "cut", "-", members), lines=lines[:25])
    assert first["members"]["bad"]["states"] == {"warming up": 12, "failed": 10, "left out": 3}
    assert "up to 2024-01-08T00:21:00Z; not asked any more, but again after a restart" in told
    summary, told, _ = quietly(recipe_of(tmp_path / "cut", "-", members), lines=lines[25:], resume=True)
    assert summary["members"]["bad"]["states"] == {"warming up": 12, "failed": 20, "left out": 6, "ok": 2}
    assert "up to 2024-01-08T00:36:00Z; not asked any more, but again after a restart" in told
    assert [note[:11] for note in summary["notes"] if note.startswith("bad:")] == ["bad: failed", "bad: 10 bar", "bad: 10 bar"]
    cut, whole = (table.filter(pc.equal(table["member"], "good")) for table in map(answers_of, (tmp_path / "cut", tmp_path / "whole")))
    assert cut.equals(whole)


def test_failures_in_a_row_are_counted_over_a_restart(tmp_path: Path) -> None:
    columns = bar_columns(30)
    columns |= {"open": columns["close"] - 1, "low": columns["low"] - 2}
    members = {"bad": forecaster(tmp_path / "bad.onnx", fault="raise")}
    quietly(recipe_of(tmp_path / "out", "-", members), lines=as_json(columns)[:18])
    summary, _, _ = quietly(recipe_of(tmp_path / "out", "-", members), lines=as_json(columns)[18:], resume=True)
    assert summary["members"]["bad"]["states"] == {"warming up": 12, "failed": 10, "left out": 8}


def test_a_bad_line_ends_the_run_where_it_can_go_on(tmp_path: Path, members: dict[str, Path]) -> None:
    lines = as_json(COLUMNS)
    recipe = recipe_of(tmp_path / "out", "-", members)
    with pytest.raises(DataError, match="standard input, line 21: "):
        quietly(recipe, lines=[*lines[:20], "oops\n"])
    assert "failed: DataError: standard input, line 21" in json.loads((tmp_path / "out" / "summary.json").read_text())["status"]
    summary, _, _ = quietly(recipe, lines=lines[20:], resume=True)
    quietly(recipe_of(tmp_path / "whole", "-", members), lines=lines)
    assert summary["bars"] == 48 and answers_of(tmp_path / "out").equals(answers_of(tmp_path / "whole"))


def test_the_advice_of_a_bad_line_can_be_followed(tmp_path: Path, members: dict[str, Path]) -> None:
    """What changes no answer that was given is no other recipe: how lines are refused, threads, memory, states, what trades cost."""
    lines = as_json(COLUMNS)
    with pytest.raises(DataError, match=r"set data\.bad_lines: skip to leave such lines out, and continue with --resume"):
        quietly(recipe_of(tmp_path / "out", "-", members), lines=[*lines[:20], "oops\n"])
    changed = recipe_of(
        tmp_path / "out",
        {"path": "-", "bad_lines": "skip"},
        members,
        name="other",
        threads=2,
        save_every=5,
        cost_ticks=1.0,
        tick=0.5,
        memory={"budget_mb": 4, "residency": "lazy"},
    )
    summary, _, _ = quietly(changed, lines=[*lines[:20], "oops\n", *lines[20:]], resume=True)
    assert (summary["bars"], summary["left_out_bars"]) == (48, {"bad lines": 1})
    quietly(recipe_of(tmp_path / "whole", "-", members), lines=lines)
    assert answers_of(tmp_path / "out").equals(answers_of(tmp_path / "whole"))
    assert begun_by(tmp_path / "out") == changed.model_copy(update={"out": None})
    with pytest.raises(RunFolderError, match=r"(?s)was begun by another recipe; .*\n-  kind: risk_weighted\n\+  kind: median$"):
        quietly(changed.model_copy(update={"rule": RuleRecipe(kind="median")}), lines=[], resume=True)


def test_a_restart_reads_prices_in_the_unit_of_the_first_bar(tmp_path: Path, members: dict[str, Path]) -> None:
    columns = {name: values if name == "ts_event" else np.full(6, 1) for name, values in bar_columns(6).items()}
    for name in ("open", "high", "low", "close"):
        columns[name] = np.array([100_000_000, 99_950_000, 99_960_000, 99_970_000, 99_980_000, 100_100_000])
    lines = as_json(columns)
    quietly(recipe_of(tmp_path / "out", "-", members), lines=lines[:2])
    quietly(recipe_of(tmp_path / "out", "-", members), lines=lines[2:], resume=True)
    table = answers_of(tmp_path / "out")
    assert table.filter(pc.equal(table["member"], "agent"))["close"].to_pylist() == [0.1, 0.09995, 0.09996, 0.09997, 0.09998, 0.1001]


def test_a_feed_at_another_step_ends_the_run_with_its_state(tmp_path: Path, members: dict[str, Path]) -> None:
    columns = bar_columns(12)
    lines = as_json({**columns, "ts_event": BEGIN + 5 * MINUTE * np.arange(12)})
    with pytest.raises(EnsembleError, match=r"line 11: none of the first 10 bars came 1 min after the one before"):
        quietly(recipe_of(tmp_path / "out", "-", members), lines=lines)
    saved = read(tmp_path / "out")
    assert saved is not None and saved.newest == BEGIN + 45 * MINUTE and "are 5 min apart" in saved.notes["told"][-1]


def test_what_a_feed_that_begins_anew_left_out_is_counted_once(tmp_path: Path, members: dict[str, Path]) -> None:
    """Before a restart a bad line between bars and one after the last; then the feed from its beginning, or from where it stopped."""
    lines = [line for bar in as_json(COLUMNS)[:8] for line in (bar, "oops\n")]
    for name, again in (("anew", lines), ("from the last bar", lines[8:]), ("on", lines[10:])):
        recipe = recipe_of(tmp_path / name, {"path": "-", "bad_lines": "skip"}, members)
        assert quietly(recipe, lines=lines[:10])[0]["left_out_bars"] == {"bad lines": 5}
        summary, _, _ = quietly(recipe, lines=again, resume=True)
        assert (summary["bars"], summary["left_out_bars"]) == (8, {"bad lines": 8})
