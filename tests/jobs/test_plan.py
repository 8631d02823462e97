"""tftq plan: what it says, what it exits with, and whether what it advises is true."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import tftq.plan.advice
from tftq.cli import main
from tftq.spec.units import MIB

pytestmark = pytest.mark.slow

RECIPE = """\
name: planned
device: cpu
data: {kind: table, path: table.csv, time: time, target: y, calendar: [hour], season: 24, lookback: 48, horizon: 4}
model: {hidden: 32, knots: 16}
train: {batch_size: 64}
quant: {method: qat}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    rows = [f"2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00,{math.sin(hour / 3):.4f}" for hour in range(600)]
    (folder / "table.csv").write_text("\n".join(["time,y", *rows]))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def planned(capsys: pytest.CaptureFixture[str], recipe: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["plan", "--json", str(recipe), *arguments])
    text, told = capsys.readouterr()
    assert told == ""
    return status, json.loads(text)


def test_every_phase_is_planned_and_fits(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = planned(capsys, recipe)
    assert status == 0 and found["fits"] and found["budget_bytes"] == 4096 * MIB and found["advice"] == []
    phases = [phase["phase"] for phase in found["phases"]]
    assert phases == ["train", "qat", "validate", "export", "export", "export"]
    for phase in found["phases"]:
        assert phase["fits"] and sum(phase["components"].values()) == phase["peak_bytes"] > 0
    assert set(found["train_peak_bytes_by_precision"]) == {"fp32", "fp16", "bf16"}
    assert found["train_peak_bytes_by_precision"]["fp32"] == found["phases"][0]["peak_bytes"]
    assert found["largest_batch_size"] == {"train": 64, "qat": 64}


def test_what_does_not_fit_is_told_with_what_would_help(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = "train.batch_size=32 train.accumulate=2"
    idle = "train.optimizer.no_such_option=true"
    monkeypatch.setattr(tftq.plan.advice, "_changes", lambda recipe: [tuple(halved.split()), ("model.hidden=16",), (idle,), ("seed=8",)])
    budget = "memory.budget_mb=5"
    status, found = planned(capsys, recipe, budget, "train.batch_size=64", "quant.method=none", "quant.qat=null")
    over = {phase["title"] for phase in found["phases"] if not phase["fits"]}
    assert status == 1 and not found["fits"] and "train" in over
    largest = found["largest_batch_size"]["train"]
    assert 1 <= largest < 64
    tips = {tip["change"]: tip for tip in found["advice"]}
    assert [tip["saved_bytes"] for tip in found["advice"]] == sorted((tip["saved_bytes"] for tip in tips.values()), reverse=True)
    assert set(tips) == {halved, "model.hidden=16"}  # what is no option, or saves nothing, is not told
    before = found["phases"][0]["peak_bytes"]
    assert all(tip["peak_bytes"] + tip["saved_bytes"] == before > tip["peak_bytes"] for tip in tips.values())
    _, changed = planned(capsys, recipe, "quant.method=none", "quant.qat=null", *halved.split())
    assert changed["phases"][0]["peak_bytes"] == tips[halved]["peak_bytes"]  # the advice is what comes of it


def test_the_table_for_people(recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tftq.plan.advice, "_changes", lambda recipe: [("model.hidden=16",)])
    overrides = ["device=cuda", "memory.budget_mb=300", "train.batch_size=1", "quant.method=none", "quant.qat=null"]
    assert main(["plan", str(recipe), *overrides]) == 1
    text, told = capsys.readouterr()
    assert told.splitlines() == [
        f"reading {recipe.parent / 'table.csv'} …",
        *("planning train …", "planning train in each precision …", "looking for the largest batch that fits …"),
        "trying model.hidden=16 …",
    ]
    assert "beside 400 for CUDA itself (an allowance)" in text and "not counted" in text
    assert "does not fit memory.budget_mb 300 on cuda: train\n" in text  # validation moves to the CPU
    assert "largest batch that fits: train none\n" in text and "model.hidden=16: " in text


def test_a_wrong_recipe_and_wrong_data_are_2(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", str(recipe), "model.hiden=3"]) == 2
    assert main(["plan", str(recipe), f"data.path={recipe.parent / 'none.csv'}"]) == 2
    assert main(["plan", str(recipe), "quant.keep_float=[heads.liner]"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "did you mean model.hidden?" in streams.err and "none.csv" in streams.err
    assert "quant.keep_float: 'heads.liner' matches no layer that is quantized; did you mean heads.linear" in streams.err
