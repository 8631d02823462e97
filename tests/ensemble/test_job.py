"""Whole runs of an ensemble: one path for files and lines, the same answers after a restart, and what is refused before anything runs."""

import codecs
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.data.helpers import BEGIN, MINUTE, bar_columns, take, write
from tests.ensemble.models import ALL, MIB, forecaster, trio, write_model, write_proof
from tests.ensemble.runs import answers_of, as_json, forecasts_of, quietly, recipe_of
from tftq.cli import main
from tftq.data.features.table import CLOCK_COLUMNS
from tftq.ensemble.member import OnePiece
from tftq.errors import DataError, EnsembleError
from tftq.serve.measure import Measurement

COLUMNS = take(bar_columns(50), np.r_[0:24, 26:50])  # two segments


@pytest.fixture
def members(tmp_path: Path) -> dict[str, Path]:
    return trio(tmp_path)


def test_a_file_and_the_same_bars_as_lines_are_answered_alike(tmp_path: Path, members: dict[str, Path]) -> None:
    of_file, _, nothing = quietly(recipe_of(tmp_path / "file", write(tmp_path / "ES.parquet", COLUMNS), members))
    of_lines, _, lines = quietly(recipe_of(tmp_path / "lines", "-", members), lines=as_json(COLUMNS))
    table = answers_of(tmp_path / "file")
    assert answers_of(tmp_path / "lines").equals(table) and nothing == ""
    documents = [json.loads(line) for line in lines.splitlines()]
    assert len(documents) == of_file["bars"] == of_lines["bars"] == 48
    ours = [
        member == "ensemble" and step <= 1 for member, step in zip(*(table[name].to_pylist() for name in ("member", "step")), strict=True)
    ]
    found = [document["ensemble"].get("position", np.nan) for document in documents]
    assert np.array_equal(np.float32(found), np.array(table.filter(pa.array(ours))["position"].to_pylist(), np.float32), equal_nan=True)
    assert documents[-1]["members"].keys() == members.keys() and documents[-1]["members"]["near"]["state"] == "ok"
    assert of_file["members"]["far"]["states"] == {"warming up": 32, "ok": 16}
    assert of_file["states"] == {"warming up": 16, "ok": 32}
    memory = of_file["memory"]
    assert (memory["budget_bytes"], memory["planned_bytes"]) == (932 * MIB, 5 * MIB) and memory["loads"] == dict.fromkeys(members, 1)
    assert {path.name for path in (tmp_path / "file").iterdir()} == {
        ".lock", "answers.parquet", "env.json", "recipe.yaml", "report.html", "state.npz", "summary.json",
    }  # fmt: skip
    assert json.loads((tmp_path / "file" / "summary.json").read_text()) == of_file


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    """The same function of named columns, which one file takes in another order."""
    order = [ALL[place] for place in np.random.default_rng(0).permutation(len(ALL))]
    members = {"usual": forecaster(tmp_path / "a.onnx"), "reordered": forecaster(tmp_path / "b.onnx", order)}
    quietly(recipe_of(tmp_path / "out", "-", members), lines=as_json(COLUMNS)[:20])
    table = answers_of(tmp_path / "out")
    one, other = (np.array(table.filter(pc.equal(table["member"], name))["P50"].to_pylist(), float) for name in members)
    assert np.isfinite(one).sum() == 24
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-9)


def test_a_pruned_member_takes_the_columns_that_it_kept(tmp_path: Path) -> None:
    members = {"pruned": forecaster(tmp_path / "a.onnx", ["hour_sin_1", "body", "volume_z_5"])}
    summary, _, _ = quietly(recipe_of(tmp_path / "out", "-", members), lines=as_json(COLUMNS)[:15])
    assert summary["members"]["pruned"]["states"] == {"warming up": 12, "ok": 3}


def test_shared_or_not_the_answers_are_the_same(tmp_path: Path, members: dict[str, Path]) -> None:
    for shared in (True, False):
        recipe = recipe_of(tmp_path / str(shared), "-", members, memory={"shared_allocator": shared})
        summary, _, _ = quietly(recipe, lines=as_json(COLUMNS)[:24])
        assert summary["memory"]["shared_allocator"] is shared
    assert answers_of(tmp_path / "True").equals(answers_of(tmp_path / "False"))


def test_a_name_with_brackets_is_told_as_it_is(tmp_path: Path, members: dict[str, Path]) -> None:
    _, told, _ = quietly(recipe_of(tmp_path / "[a]", "-", {"[bold]": members["near"]}), lines=as_json(COLUMNS)[:2])
    assert told.count("│ [bold] ") == 1 and "\n  [bold]  " in told and "test into" in told and "/[a]\n" in told


def test_lazily_the_answers_are_the_same_and_the_loads_are_told(tmp_path: Path, members: dict[str, Path]) -> None:
    lines = as_json(COLUMNS)[:24]
    quietly(recipe_of(tmp_path / "all", "-", members), lines=lines)
    recipe = recipe_of(tmp_path / "lazy", "-", members, memory={"budget_mb": 3, "residency": "lazy"})
    summary, told, _ = quietly(recipe, lines=lines)
    assert answers_of(tmp_path / "lazy").equals(answers_of(tmp_path / "all"))
    memory = summary["memory"]
    assert memory["evictions"] == sum(memory["loads"].values()) - 2 > 4 and memory["load_seconds"] > 0
    assert f"{memory['evictions'] + 2} loads in " in told and f"{memory['evictions']} of them in place of another member" in told
    with pytest.raises(EnsembleError, match=r"members together are above memory\.budget_mb"):
        quietly(recipe_of(tmp_path / "no", "-", members, memory={"budget_mb": 3}), lines=lines)
    assert not (tmp_path / "no").exists()


def test_lazily_a_file_that_was_replaced_is_not_loaded(tmp_path: Path, members: dict[str, Path]) -> None:
    """The same bytes written again change nothing; those of another model are not loaded, and the others go on."""
    lines = as_json(COLUMNS)[:24]

    def replaced_on_the_way() -> Iterable[str]:
        yield from lines[:17]
        members["near"].write_bytes(members["near"].read_bytes())
        yield from lines[17:19]
        forecaster(members["near"], seed=9)
        yield from lines[19:]

    recipe = recipe_of(tmp_path / "out", "-", members, memory={"budget_mb": 2, "residency": "lazy"})
    summary, told, _ = quietly(recipe, lines=replaced_on_the_way())
    states = {name: member["states"] for name, member in summary["members"].items()}
    assert states["near"] == {"warming up": 12, "ok": 7, "failed": 5} and "failed" not in states["far"] | states["agent"]
    assert "near: failed at 2024-01-08T00:19:00Z" in told and f"{members['near']} was replaced since the run began; put it back" in told


def test_a_member_of_another_tool(tmp_path: Path) -> None:
    """The sign of open - close, out of a window in a row; its memory is measured here and now."""
    constants = {"w": np.array([[0.0], [0.0], [1.0], [-1.0]], np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["fall"]), helper.make_node("Sign", ["fall"], ["y"])]
    write_model(tmp_path / "other.onnx", nodes, constants, {"x": (4,)}, {"y": (1,)}, None, None)
    foreign = {"lookback": 2, "warmup": 0, "history": {"x": ["open", "close"]}, "output": {"kind": "position", "name": "y"}}
    members = {"other": {"path": tmp_path / "other.onnx", "foreign": foreign}}
    summary, _, _ = quietly(recipe_of(tmp_path / "out", {"path": "-", "step_s": 60.0}, members), lines=as_json(COLUMNS)[:20])
    table = answers_of(tmp_path / "out")
    found = table.filter(pc.equal(table["member"], "other"))["position"].to_pylist()
    assert found == [None, *np.sign(COLUMNS["open"] - COLUMNS["close"])[1:20].tolist()]
    assert summary["memory"]["planned_bytes"] > MIB / 2 and table.column_names[-1] == "state" and "P50" not in table.column_names
    with pytest.raises(EnsembleError, match=r"no member says how far apart its bars are; say it with data\.step_s"):
        quietly(recipe_of(tmp_path / "x", "-", members), lines=[])
    narrow = {"other": {"path": tmp_path / "other.onnx", "foreign": {**foreign, "lookback": 3}}}
    with pytest.raises(EnsembleError, match=r"^member other: .*: other\.onnx: .*: InvalidArgument: .*Expected: 4.*$"):
        quietly(recipe_of(tmp_path / "n", {"path": "-", "step_s": 60.0}, narrow), lines=[])
    write_proof(tmp_path / "other.export.json", 1, tmp_path / "other.onnx")
    broken = {"other": {"path": tmp_path / "other.onnx", "foreign": {**foreign, "history": {"z": ["open"]}}}}
    with pytest.raises(EnsembleError, match=r"^member other: .*other\.onnx takes x; given are z"):
        quietly(recipe_of(tmp_path / "y", {"path": "-", "step_s": 60.0}, broken), lines=[])
    elsewhere = {"other": {"path": tmp_path / "other.onnx", "foreign": {**foreign, "output": {"kind": "position", "name": "q"}}}}
    with pytest.raises(EnsembleError, match=r"other\.onnx gives y; wanted is q"):
        quietly(recipe_of(tmp_path / "q", {"path": "-", "step_s": 60.0}, elsewhere), lines=[])
    whole = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT), helper.make_node("ReduceMax", ["f"], ["y"], keepdims=0)]
    x, y = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 4]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    onnx.save(
        helper.make_model(helper.make_graph(whole, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        tmp_path / "other.onnx",
    )
    write_proof(tmp_path / "other.export.json", 1, tmp_path / "other.onnx")
    with pytest.raises(EnsembleError, match=r"other\.onnx takes x tensor\(int64\); allowed: tensor\(float\), tensor\(double\)"):
        quietly(recipe_of(tmp_path / "i", {"path": "-", "step_s": 60.0}, members), lines=[])
    silent = {"other": {"path": tmp_path / "other.onnx"}}
    with pytest.raises(EnsembleError, match=r"other\.onnx says nothing of its columns; say it in members\.other\.foreign"):
        quietly(recipe_of(tmp_path / "z", "-", silent), lines=[])


def test_a_foreign_forecaster_in_double_precision_whose_window_is_open(tmp_path: Path) -> None:
    """A band around the last known hour's sine: [batch, rows, columns] of doubles, no size but the columns' told."""
    x, clock = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", "rows", 2]) for name in ("x", "clock"))
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["batch", "rows", 3])
    band = helper.make_node("Constant", [], ["band"], value=numpy_helper.from_array(np.array([[0.0, 0, 0], [-1.0, 0, 1]])))
    nodes = [band, helper.make_node("MatMul", ["clock", "band"], ["bands"]), helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0)]
    nodes.append(helper.make_node("Add", ["bands", "most"], ["y"]))
    model = helper.make_model(helper.make_graph(nodes, "g", [x, clock], [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    foreign = {
        "lookback": 3,
        "warmup": 0,
        "horizon": 2,
        "history": {"x": ["body", "zero_volume"]},
        "future": {"clock": ["hour_sin_1", "day_of_month"]},
        "output": {"kind": "quantiles", "name": "y"},
    }
    members = {"other": {"path": tmp_path / "other.onnx", "foreign": foreign}}
    quietly(recipe_of(tmp_path / "out", {"path": "-", "step_s": 60.0}, members), lines=as_json(COLUMNS)[:12])
    found = forecasts_of(answers_of(tmp_path / "out"), "other")
    volume, begin, close = (COLUMNS[name][:12] for name in ("volume", "open", "close"))
    most = np.maximum((volume == 0).astype(float), np.log(close / begin))
    expected = np.array([most[i - 2 : i + 1].max() for i in range(2, 12)])
    day = (8 - 1) / 31  # of January, plus a few minutes
    np.testing.assert_allclose(found[:, :, 1], np.stack([expected, expected], axis=1), atol=1e-7)
    np.testing.assert_allclose(found[:, :, 2] - found[:, :, 1], day, atol=1e-3)


def test_members_that_want_other_bars_are_refused(tmp_path: Path) -> None:
    one = forecaster(tmp_path / "a.onnx")
    hourly = forecaster(tmp_path / "b.onnx", step_ns=60 * MINUTE)
    with pytest.raises(EnsembleError, match=r"one step between bars is wanted; found: a 1 min, b 1 h"):
        quietly(recipe_of(tmp_path / "out", "-", {"a": one, "b": hourly}), lines=[])
    with pytest.raises(EnsembleError, match=r"found: data\.step_s 5 min, a 1 min"):
        quietly(recipe_of(tmp_path / "out", {"path": "-", "step_s": 300.0}, {"a": one}), lines=[])
    chicago = forecaster(tmp_path / "c.onnx", data={"kind": "bars", "warmup": 5, "time_zone": "America/Chicago"})
    with pytest.raises(EnsembleError, match=r"one clock for the calendar columns is wanted; .*: a UTC, c America/Chicago"):
        quietly(recipe_of(tmp_path / "out", "-", {"a": one, "c": chicago}), lines=[])


def test_bars_that_members_were_trained_on_are_not_judged(tmp_path: Path) -> None:
    member = forecaster(tmp_path / "a.onnx", trained_until_ns=BEGIN + 20 * MINUTE)
    path = write(tmp_path / "ES.parquet", bar_columns(40))
    summary, told, _ = quietly(recipe_of(tmp_path / "all", path, {"a": member}))
    assert (summary["bars"], summary["backtest"]["bars"], summary["backtest"]["learned_bars_left_out"]) == (40, 19, 21)
    assert f"report: {tmp_path / 'all' / 'report.html'}" in told
    later = forecaster(tmp_path / "b.onnx", trained_until_ns=BEGIN + 90 * MINUTE)
    summary, told, _ = quietly(recipe_of(tmp_path / "before", path, {"b": later}))
    assert "no bar is later than 2024-01-08T01:30:00Z, when training ended: judged all the same" in told
    assert summary["backtest"]["bars"] == 40 and summary["backtest"]["since_ns"] is None
    summary, _, _ = quietly(recipe_of(tmp_path / "unseen", {"path": path, "unseen": True}, {"a": member}))
    assert (summary["bars"], summary["backtest"]["bars"], summary["backtest"]["learned_bars_left_out"]) == (19, 19, 0) and summary[
        "states"
    ] == {"ok": 19}


def test_a_member_that_does_not_say_when_its_training_ended_is_warned_of(tmp_path: Path) -> None:
    foreign = {
        "lookback": 8,
        "warmup": 5,
        "horizon": 3,
        "history": {"history": ALL},
        "future": {"future": CLOCK_COLUMNS},
        "output": {"kind": "quantiles", "name": "forecast"},
    }
    members = {
        "a": forecaster(tmp_path / "a.onnx", trained_until_ns=BEGIN + 20 * MINUTE),
        "b": {"path": forecaster(tmp_path / "b.onnx"), "foreign": foreign},
    }
    summary, _, _ = quietly(recipe_of(tmp_path / "out", write(tmp_path / "ES.parquet", bar_columns(40)), members))
    words = "b may have been trained on these very bars: nothing says otherwise."
    assert summary["backtest"]["bars"] == 19 and summary["backtest"]["warning"].endswith(f" {words}")
    assert words in (tmp_path / "out" / "report.html").read_text()


def test_answers_that_contradict_each_other_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicted(*_: object, **__: object) -> None:
        raise DataError("answers tell two closes of a bar")

    monkeypatch.setattr("tftq.ensemble.job.backtest", contradicted)
    with pytest.raises(DataError, match="two closes"):
        quietly(recipe_of(tmp_path / "out", "-", {"a": forecaster(tmp_path / "a.onnx")}), lines=as_json(COLUMNS)[:3])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed: DataError: answers tell two closes of a bar"


def test_too_few_bars_to_judge_are_told(tmp_path: Path) -> None:
    summary, told, _ = quietly(recipe_of(tmp_path / "out", "-", {"a": forecaster(tmp_path / "a.onnx")}), lines=as_json(COLUMNS)[:1])
    assert "not judged, and no report: no two bars in a row" in told and "backtest" not in summary
    nothing, told, _ = quietly(recipe_of(tmp_path / "none", "-", {"a": tmp_path / "a.onnx"}), lines=[])
    assert nothing["bars"] == answers_of(tmp_path / "none").num_rows == 0 and "not judged" in told
    assert summary["states"] == {"warming up": 1} and not (tmp_path / "out" / "report.html").exists()


def test_another_symbol_than_that_of_training_is_told(tmp_path: Path) -> None:
    member = forecaster(tmp_path / "a.onnx", data={"kind": "bars", "warmup": 5, "symbol": "ESZ3"})
    summary, told, _ = quietly(recipe_of(tmp_path / "out", "-", {"a": member}), lines=as_json(COLUMNS)[:2])
    note = "a was trained on ESZ3, these are all of them"
    assert note in summary["notes"] and note in told


def test_a_file_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path, members: dict[str, Path]) -> None:
    gone = {**members, "gone": tmp_path / "gone.onnx", "lost": tmp_path / "lost.onnx"}
    with pytest.raises(
        EnsembleError, match=r"^member gone: no .*gone\.onnx; give a model, a folder of models.*\nmember lost: no .*lost\.onnx"
    ):
        quietly(recipe_of(tmp_path / "out", "-", gone), lines=[])
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(EnsembleError, match=r"member text: .*text\.onnx: no ONNX file"):
        quietly(recipe_of(tmp_path / "out", "-", {"text": tmp_path / "text.onnx"}), lines=[])
    (tmp_path / "empty").mkdir()
    with pytest.raises(EnsembleError, match=r"member none: .*empty: no exported model; it has none"):
        quietly(recipe_of(tmp_path / "out", "-", {"none": tmp_path / "empty"}), lines=[])
    assert not (tmp_path / "out").exists()


def test_what_was_measured_of_another_file_does_not_count(
    tmp_path: Path, members: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def measure(*paths: Path, **_: Any) -> Measurement:
        measured.extend(paths)
        return Measurement({"rss_bytes": 7.0 * MIB}, {})

    monkeypatch.setattr("tftq.ensemble.member.measure", measure)
    write_proof(members["far"].with_suffix(".export.json"), MIB, members["near"])
    summary, told, _ = quietly(recipe_of(tmp_path / "out", "-", members), lines=[])
    assert measured == [members["far"]] and f"far: measured anew what it takes, for {tmp_path / 'far.export.json'} does not" in told
    assert [member["planned_bytes"] for member in summary["members"].values()] == [2 * MIB, 7 * MIB, MIB]


def test_the_newest_bars_alone_are_answered_as_in_the_whole(tmp_path: Path, members: dict[str, Path]) -> None:
    path = write(tmp_path / "ES.parquet", bar_columns(90))
    quietly(recipe_of(tmp_path / "whole", path, members))
    summary, _, _ = quietly(recipe_of(tmp_path / "last", {"path": path, "last": 6}, members))
    assert summary["bars"] == 6
    whole, last = answers_of(tmp_path / "whole"), answers_of(tmp_path / "last")
    held = last.column("time")[0].value  # an agent begins anew, and so does what comes of it
    some = pa.array(["near", "far"])
    whole = whole.filter(pc.and_(pc.is_in(whole["member"], some), pc.greater_equal(whole["time"].cast("int64"), held)))
    assert held == BEGIN + 84 * MINUTE and last.filter(pc.is_in(last["member"], some)).equals(whole)


def test_the_command_line(
    tmp_path: Path, members: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "ES.parquet", take(COLUMNS, slice(0, 20)))
    text = "\n".join(["name: small", "members:", *(f"  {name}: {{path: {file.name}}}" for name, file in members.items())])
    recipe = tmp_path / "ensemble.yaml"
    recipe.write_text(f"{text}\ndata: {{path: {path.name}}}\n")
    assert main(["ensemble", str(recipe), f"out={tmp_path / 'out'}", "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out) == json.loads((tmp_path / "out" / "summary.json").read_text()) and streams.err == ""
    lines = [line.encode() for line in as_json(COLUMNS)[:20]]
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"".join([codecs.BOM_UTF8, *lines[:3], b'{"open\xff": 1}\n', *lines[3:]])))
    )
    assert main(["ensemble", str(recipe), f"out={tmp_path / 'live'}", "data.path=-", "data.bad_lines=skip"]) == 0
    streams = capsys.readouterr()
    assert "line 4: left out: standard input: no column for timestamp" in streams.err
    assert [json.loads(line)["segment"] for line in streams.out.splitlines()] == [0] * 20 and "small into" in streams.err
    assert answers_of(tmp_path / "live").equals(answers_of(tmp_path / "out"))
    assert main(["ensemble", str(recipe), f"out={tmp_path / 'small'}", "memory.budget_mb=3"]) == 1
    assert "error: the members together are above memory.budget_mb:\n  near" in capsys.readouterr().err
    assert main(["ensemble", str(recipe), "memory.budget=3"]) == 2
    assert "did you mean memory.budget_mb?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["ensemble", str(recipe), "data.path=-", "--json"])
    assert stopped.value.code == 2 and "--json: standard output carries the answers" in capsys.readouterr().err


def test_a_member_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: OnePiece) -> None:
        raise RuntimeError("no such opset")

    monkeypatch.setattr(OnePiece, "load", broken)
    with pytest.raises(EnsembleError, match="member a: cannot be loaded: no such opset"):
        quietly(recipe_of(tmp_path / "out", "-", {"a": forecaster(tmp_path / "a.onnx")}), lines=as_json(COLUMNS)[:1])
    assert not (tmp_path / "out").exists()
    lazy = recipe_of(tmp_path / "lazy", "-", {"a": tmp_path / "a.onnx"}, memory={"residency": "lazy"})
    summary, told, _ = quietly(lazy, lines=as_json(COLUMNS)[:14])  # where it fails when it is asked
    assert summary["members"]["a"]["states"] == {"warming up": 12, "failed": 2} and "RuntimeError: no such opset" in told
