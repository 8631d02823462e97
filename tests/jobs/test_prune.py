"""Pruning as a stage of a run: what stays, what is left of it in every file, and how it goes on after an interruption."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import tftq.jobs.run
import tftq.train.resume
from tests.data.helpers import BEGIN, MINUTE, write
from tests.runs import Run
from tftq.cli import main
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.errors import RecipeError
from tftq.jobs.run import run
from tftq.model.size import parameter_count
from tftq.plan.training import Planner
from tftq.recipe.load import load_recipe
from tftq.serve.forecast import predict
from tftq.serve.session import feeds, open_session
from tftq.spec.metadata import read_metadata
from tftq.train.build import architecture_of
from tftq.train.checkpoint import load_checkpoint
from tftq.train.stages import stages_of

pytestmark = pytest.mark.slow

RECIPE = """\
name: pruned
seed: 2
device: cpu
data:
  {kind: table, path: table.parquet, time: time, target: y, known: [ahead, moon], observed: [b, signal, c],
   season: 4, lookback: 6, horizon: 2}
model: {hidden: 16, heads: 2, knots: 8}
train: {epochs: 4, optimizer: {lr: 2e-2, groups: {"*norm*": 1e-2}}, checkpoint_every: 5}
quant: {prune: {keep: 2, epochs: 1, lr: 3e-3}}
"""


def table(count: int = 700) -> dict[str, Any]:
    """y follows what `signal` was a row before and what `ahead` is now; y's own past, `moon`, `b` and `c` say nothing of its future."""
    random = np.random.default_rng(3)
    signal, ahead, b, c, moon, noise = random.normal(size=(6, count))
    y = 3 * np.r_[0, signal[:-1]] + 2 * ahead + 0.1 * noise
    times = (BEGIN + 60 * MINUTE * np.arange(count)).astype("datetime64[ns]")
    return {"time": times, "y": y, "ahead": ahead, "moon": moon, "b": b, "signal": signal, "c": c}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pruned")
    write(folder / "table.parquet", table())
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml"


def do(recipe: Path, folder: Path, *, resume: bool = False) -> Run:
    console = Console(file=io.StringIO(), width=200)
    run(load_recipe(recipe, [f"out={folder}", "export.publish=false"]), resume=resume, console=console)
    assert isinstance(console.file, io.StringIO)
    return Run(folder, console.file.getvalue(), json.loads((folder / "summary.json").read_text()))


@pytest.fixture(scope="module")
def made(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return do(recipe, tmp_path_factory.mktemp("run") / "run")


def test_what_informs_stays(made: Run) -> None:
    found = made.summary["prune"]
    assert next(iter(found["kept"])) == "signal" and found["kept"]["signal"] > 0.3
    assert len(found["kept"]) == 2 and {*found["kept"], *found["dropped"]} == {"y", "ahead", "moon", "b", "signal", "c"}
    weights = [*found["kept"].values(), *found["dropped"].values()]
    assert weights == sorted(weights, reverse=True) and sum(weights) == pytest.approx(1)


def test_what_it_cost_is_told(made: Run) -> None:
    before, found = made.summary["val"]["loss"], made.summary["prune"]
    after = found["val"]["loss"]
    assert after <= found["start_loss"] and after < 1.1 * before
    assert made.summary["models"]["fp32"]["loss"] == pytest.approx(after, rel=1e-4)
    line = f"quantile loss {before:.5f} before, {found['start_loss']:.5f} right after, {after:.5f} trained on"
    assert "pruned: 2 of 6 history variables kept, with " in made.printed and line in made.printed
    page = (made.folder / "report.html").read_text(encoding="utf-8")
    assert all(
        words in page
        for words in (
            "Pruned variables",
            "The 2 that were kept",
            "The 4 that were left out",
            f"{found['start_loss']:.5f}",
            ">pruned<",
            ">p1<",
        )
    )
    note = "train.optimizer.groups count until variables are pruned; then everything is trained on at quant.prune.lr"
    assert note in made.summary["notes"]


def test_the_stage_is_watched_and_planned_like_the_others(made: Run) -> None:
    records = [json.loads(line) for line in (made.folder / "memory.jsonl").read_text().splitlines()]
    assert made.summary["memory"]["missing"] == [] and [record["stage"] for record in records].count("prune") == 9
    for stage, planned in (("train", made.summary["memory"]["planned_peak_bytes"]), ("prune", made.summary["prune"]["planned_peak_bytes"])):
        assert max(record["peak"] for record in records if record["stage"] == stage) == pytest.approx(planned, rel=0.05)
    first = next(record for record in records if record["stage"] == "prune")
    assert first["components"]["optimizer"] == 0  # the larger model and its optimizer are gone
    rates = {name for line in metrics(made.folder / "prune") for name in line["lr"]}
    assert rates == {"weights", "others"}  # no group of training's


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_file_takes_what_is_left_and_names_it(recipe: Path, made: Run) -> None:
    path = made.folder / "exports" / "fp32.onnx"
    notes = read_metadata(path)
    kept = [name for name in ("y", "b", "signal", "c", "ahead", "moon") if name in made.summary["prune"]["kept"]]
    assert list(notes.names("history")) == kept
    assert notes.names("future") == ("ahead", "moon")
    assert set(notes.left_out) == set(made.summary["prune"]["dropped"])
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim][1:] for value in onnx.load(path).graph.input}
    assert shapes == {"history": [6, 2], "future": [2, 2]}


def test_a_file_with_every_column_is_forecast(recipe: Path, made: Run, tmp_path: Path) -> None:
    windows = load_datasets(load_recipe(recipe).data).validation.without(made.summary["prune"]["dropped"])
    session = open_session(made.folder / "exports" / "fp32.onnx")
    expected = session.run(None, feeds(session, windows.batch(range(len(windows))).inputs))[0]
    columns = table()
    found = np.concatenate([batch.values for batch in predict(made.folder, write(tmp_path / "a.parquet", columns)).batches()])
    np.testing.assert_allclose(found[-len(expected) :], expected, rtol=1e-4, atol=1e-5)
    unused = {"y", "b", "c"} & set(made.summary["prune"]["dropped"])  # the known ones are still used ahead
    for name in unused:
        columns[name] = columns[name] * -7.0
    again = np.concatenate([batch.values for batch in predict(made.folder, write(tmp_path / "b.parquet", columns)).batches()])
    assert len(unused) >= 2 and np.array_equal(found, again)


class Stop(Exception):
    pass


def test_interrupted_while_pruned_and_resumed_equals_uninterrupted(
    recipe: Path, made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = tftq.train.resume.save_checkpoint, []

    def interrupted(path: Path, content: dict[str, Any]) -> None:
        save(path, content)
        saved.append(path.relative_to(tmp_path / "run").as_posix())
        if saved.count("prune/checkpoints/last.pt") == 2:  # in the middle of the first epoch
            raise KeyboardInterrupt

    def stop(*_: object) -> None:
        raise Stop

    shutil.copytree(made.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "prune")  # as if it had stopped right after training
    monkeypatch.setattr(tftq.train.resume, "save_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do(recipe, tmp_path / "run", resume=True)
    monkeypatch.setattr(tftq.train.resume, "save_checkpoint", save)
    monkeypatch.setattr(tftq.jobs.run, "_export", stop)
    with pytest.raises(Stop):
        do(recipe, tmp_path / "run", resume=True)
    for name in ("best", "last"):
        ours, theirs = (load_checkpoint(folder / "prune" / "checkpoints" / f"{name}.pt") for folder in (tmp_path / "run", made.folder))
        assert ours["model"].keys() == theirs["model"].keys()
        assert all(torch.equal(value, theirs["model"][key]) for key, value in ours["model"].items())
    assert ours["state"]["start_loss"] == theirs["state"]["start_loss"] == made.summary["prune"]["start_loss"]


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_nothing_to_prune_is_refused(recipe: Path, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, str(recipe), "quant.prune.keep=6", f"out={tmp_path / 'run'}"]) == 2
    assert "quant.prune.keep: found 6, but the data has 6 history variables; allowed: fewer than these" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_follows_is_planned_for_what_is_left(recipe: Path) -> None:
    pruned, whole = (load_recipe(recipe, ["quant.method=qat", *more]) for more in ((), ("quant.prune=null",)))
    data = load_datasets(pruned.data)
    planner = Planner(data.train.inputs, data.scaling, data.target_scaling, torch.device("cpu"))
    assert (stages_of(pruned), stages_of(whole)) == (("train", "prune", "qat"), ("train", "qat"))
    assert (planner.deployed_size(pruned).knots, planner.deployed_size(whole).knots) == (2 * 8, 6 * 8)
    train, prune = (planner.plan_stage(pruned, stage, 2).update.components["parameters"] for stage in ("train", "prune"))
    inputs = data.train.inputs
    left = inputs.without([column.name for column in inputs.history[2:]])
    counts = [parameter_count(some, architecture_of(pruned.model)) for some in (inputs, left)]
    assert train - prune == pytest.approx(4 * (counts[0] - counts[1]), rel=0.05)  # beside buffers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{keep: 0}", "quant.prune.keep (line 9): found 0; allowed: a whole number, at least 1, at most 1000000"),
        ("{lr: 1e-3}", "quant.prune.keep (line 9): missing; allowed: a whole number, at least 1"),
    ],
)
def test_what_a_recipe_must_say(recipe: Path, text: str, words: str) -> None:
    other = recipe.with_name("other.yaml")
    other.write_text(RECIPE.replace("{keep: 2, epochs: 1, lr: 3e-3}", text))
    with pytest.raises(RecipeError) as caught:
        load_recipe(other)
    assert words in str(caught.value)
