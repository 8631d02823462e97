"""The report of a made-up run of an ensemble: every figure is on it, it needs nothing else, and it does not boast."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.ensemble.tables import BEGIN, MINUTE, answers_table, random_members
from tests.report.reader import Reader
from tftq.ensemble.answers import Answer
from tftq.ensemble.backtest import backtest
from tftq.ensemble.report import POINTS, write_report

MIB = 2**20


def member(kind: str, planned: int, **states: int) -> dict[str, Any]:
    """A member's entry in summary.json."""
    return {
        **{"kind": kind, "path": f"exports/{kind}/int8_ptq.onnx", "weight": 1.0, "planned_bytes": planned, "measured_bytes": planned - MIB},
        **{"latency_ms": {"median": 1.25, "p99": 2.5}, "states": states},
    }


def write_run(folder: Path, bars: int = 60, *, since: int | None = None, **changes: Any) -> Path:
    """Write an ensemble's folder."""
    close = (100 + np.random.default_rng(5).normal(0, 1, bars).cumsum()).tolist()
    members = random_members(np.array(close))
    table = answers_table(close, members, segments=[2 * bar // bars for bar in range(bars)])
    pq.write_table(table, folder / "answers.parquet")
    found = backtest(table, cost_ticks=1, tick=0.25, since=since)
    summary: dict[str, Any] = {
        **{
            "name": "four",
            "status": "ok",
            "rule": "risk_weighted",
            "bars": bars,
            "resumed_after_bars": 0,
            "states": {"ok": bars},
            "notes": ["2 bars dropped: <no price>"],
        },
        "members": {
            "dqn": member("dqn", 5 * MIB, ok=bars),
            "tft": member("tft", 40 * MIB, **{"warming up": 5, "ok": bars - 6, "not finite": 1}),
            "mamba2": member("mamba2", 20 * MIB, ok=bars) | {"measured_bytes": None},
        },
        "memory": {
            **{"budget_bytes": 120 * MIB, "planned_bytes": 65 * MIB, "resident_bytes": 58 * MIB},
            **{
                "residency": "all",
                "shared_allocator": True,
                "loads": {"dqn": 1, "tft": 1, "mamba2": 1},
                "evictions": 0,
                "load_seconds": 0.5,
            },
        },
        "latency_ms": {"median": 7.5, "p99": 12.25},
        "backtest": found.summary(),
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    env = {"started": "2024-01-08T07:10:00Z", "packages": {"onnxruntime": "1.23.0"}, "cuda": None, "git": {"commit": "abc", "dirty": True}}
    (folder / "env.json").write_text(json.dumps(env))
    (folder / "recipe.yaml").write_text("name: four\nmembers: {tft: {path: exports/tft}}\n")
    return folder


def read(folder: Path) -> tuple[str, dict[str, list[str]], str]:
    """The page's text, the first cell of each row of its tables -> the others, and the page."""
    page = write_report(folder).read_text(encoding="utf-8")
    reader = Reader(page)
    assert not reader.open, "left open"
    root = ElementTree.fromstring(page)  # well-formed to the letter
    rows = [["|".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return reader.text, {row[0]: row[1:] for row in rows}, page


def test_the_page_shows_every_figure(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    text, cells, page = read(folder)
    scores = json.loads((folder / "summary.json").read_text())["backtest"]["scores"]
    order = [scores[name] for name in ("ensemble", "dqn", "tft", "mamba2", "buy and hold", "no change")]
    assert f"After costs the ensemble returned {order[0]['net_return']:+.3%}, buying and holding {order[4]['net_return']:+.3%}" in text
    for words in (
        "dqn, tft, mamba2, combined by risk_weighted, over 60 bars; begun 2024-01-08T07:10:00Z.",
        "A week of bars proves nothing.",
        "Members may have been trained on these very bars",
        "58 MiB",
        "resident, budget 120 MiB",
        "7.50 ms",
        "per bar, p99 12.25 ms",
        "A change of position by 1 costs 0.25 in the price's unit.",
        "Planned 65.0 MiB in all; the process grew by 58.0 MiB; budget 120 MiB, residency all, one allocator for all sessions. "
        "Bars of the ensemble: ok 60.",
        "2 bars dropped: <no price>",
        "commit abc, dirty yes",
        "Median time per bar, ms",
        "members: {tft: {path: exports/tft}}",
    ):
        assert words in text
    assert cells["return after costs"] == [f"{score['net_return']:+.3%}" for score in order]
    assert cells["maximum drawdown"] == [f"{score['max_drawdown']:.3%}" for score in order]
    assert cells["turnover"][0] == f"{order[0]['turnover']:,.1f}" and cells["trades"][-1] == "0"
    assert cells["hit rate"][1] == f"{order[1]['hit_rate']:.1%}|{order[1]['hits']} of {order[1]['hits'] + order[1]['misses']}"
    assert cells["hit rate"][-1] == "–|0 of 0"
    assert cells["P50 q-risk"] == ["–", "–", *(f"{order[i]['forecast']['q_risk']['0.5']:.4f}" for i in (2, 3)), "–", "1.0000"]
    assert cells["P90 q-risk"][-1] == "–" and cells["coverage"][2] == f"{order[2]['forecast']['coverage']:.1%}"
    assert cells["quantile loss, bp"][3] == f"{1e4 * order[3]['forecast']['loss']:.3f}" and cells["quantile loss, bp"][-1] == "–"
    assert cells["type"] == ["dqn", "tft", "mamba2"] and cells["file"] == 3 * ["int8_ptq.onnx"]
    assert cells["memory, planned"] == ["5.0 MiB", "40.0 MiB", "20.0 MiB"]
    assert cells["memory, measured at loading"] == [
        "4.0 MiB",
        "39.0 MiB",
        "–",
    ]
    assert cells["bars: not finite"] == ["0", "1", "0"] and cells["bars: warming up"] == ["0", "5", "0"] and cells["bars: ok"][1] == "54"
    assert cells["time per bar, p99"] == 3 * ["2.50 ms"]
    assert "budget 120<" in page and 'class="verdict bad"' in page and 'class="verdict good"' not in page


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|http", read(write_run(tmp_path))[2])


def test_bars_of_training_are_reported(tmp_path: Path) -> None:
    text, _, _ = read(write_run(tmp_path, since=BEGIN + 9 * MINUTE))
    assert "10 bars up to the end of training do not count." in text and "trained on these very bars" not in text


def test_figures_since_a_restart_say_so(tmp_path: Path) -> None:
    words = "The run was resumed after 1,200 bars: times, loads and memory are of the bars after them."
    assert words in read(write_run(tmp_path, resumed_after_bars=1200))[0] and "resumed" not in read(write_run(tmp_path))[0]


def test_many_bars_are_drawn_as_some(tmp_path: Path) -> None:
    _, _, page = read(write_run(tmp_path, bars=POINTS + 20))
    (path, *_) = (path.attrib["d"] for path in ElementTree.fromstring(page).iter("path"))
    assert path.count("M") == 1 and path.count("L") == POINTS - 1


def test_a_budget_far_off_is_written_and_not_drawn(tmp_path: Path) -> None:
    memory = {
        "budget_bytes": 932 * MIB,
        "planned_bytes": 65 * MIB,
        "resident_bytes": 58 * MIB,
        "residency": "lazy",
        "shared_allocator": False,
    }
    memory |= {"loads": {"dqn": 7, "tft": 3}, "evictions": 8, "load_seconds": 1.25}
    text, _, page = read(write_run(tmp_path, memory=memory))
    assert "budget 932<" not in page and "budget 932 MiB, residency lazy, an allocator for each session." in text
    assert "Members were loaded 10 times in all, which took 1.2 s, and unloaded 8 times to make room. Bars of the ensemble: ok 60." in text


def test_agents_alone_have_no_risks(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    table = answers_table([1.0, 2.0, 3.0], {"dqn": 3 * [Answer(1)], "ensemble": 3 * [Answer(1)]})
    pq.write_table(table, folder / "answers.parquet")
    _, cells, _ = read(folder)
    assert "forecast windows" not in cells and "P50 q-risk" not in cells and cells["trades"] == ["2", "2", "2", "0"]


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    before = write_report(folder).read_text(encoding="utf-8")
    (folder / "env.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        write_report(folder)
    assert (folder / "report.html").read_text(encoding="utf-8") == before and not list(folder.glob("*.part"))
