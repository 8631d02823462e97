"""Runs side by side: every figure where it belongs, what does not compare said so, and nothing run before everything given is right."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tftq.jobs.compare
from tests.report.folder import summary, write_folder
from tests.runs import ROOT, Run
from tftq.cli import main
from tftq.console import Console
from tftq.errors import CompareError, RecipeError, RunFolderError
from tftq.jobs.compare import Comparison, FinishedRun, compare
from tftq.jobs.folder import identity
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe

pytestmark = pytest.mark.xdist_group("bars_run")

RECIPE = ROOT / "recipes" / "ptq_int8.yaml"
WINDOWS = {"count": 200, "targets": "abc", "loss_scale": [1.0, 2.0, 3.0]}


def finished(folder: Path, name: str = "first", **changes: Any) -> Path:
    """A made-up run of two models, the second of which loses a fifth."""
    folder.mkdir()
    found = summary(name) | {"validation_windows": WINDOWS} | changes
    found["models"]["int8_qat"] |= {"loss": 0.15, "kept_float": ["heads.linear"]}
    return write_folder(folder, found)


def shown(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=140)
    comparison.show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr(tftq.jobs.compare, "run", refuse)


def test_every_model_of_every_run_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [finished(tmp_path / name, name) for name in ("first", "second")]
    assert main(["compare", *map(str, folders), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["comparable"], found["differences"], found["measured_elsewhere"]) == (True, [], [])
    assert found["baseline"] == {"run": "first", "model": "fp32"}
    assert [(row["run"], row["model"], row["loss_ratio"]) for row in found["models"]] == [
        ("first", "fp32", 1.0),
        ("first", "int8_qat", pytest.approx(1.2)),
        ("second", "fp32", 1.0),
        ("second", "int8_qat", pytest.approx(1.2)),
    ]
    assert found["models"][1] == {
        **{"run": "first", "folder": str(folders[0]), "model": "int8_qat", "loss": 0.15, "loss_ratio": pytest.approx(1.2)},
        **{"q_risk": {"0.1": 0.11, "0.5": 0.4, "0.9": 0.19}, "coverage": 0.81, "file_bytes": 1_000_000, "rss_bytes": 12_300_000},
        **{"latency_ms": 1.25, "int8_weight_share": 0.875, "int4_weight_share": 0.0, "kept_float": ["heads.linear"]},
    }
    assert main(["compare", *map(str, folders)]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert ["second", "int8_qat", "0.15000", "1.2000", "0.4000", "81.0%", "1.00", "12", "1.25", "88%", "1"] in rows
    assert "second int8_qat: in floating point stay heads.linear\n" in text and "not comparable" not in text and "note:" not in text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = tuple(FinishedRun.read(finished(tmp_path / name)) for name in ("a", "b"))
    assert Comparison(runs).labels() == [f"first ({tmp_path / 'a'})", f"first ({tmp_path / 'b'})"]


def test_without_fp32_the_first_model_is_the_measure(tmp_path: Path) -> None:
    found = summary()
    del found["models"]["fp32"]
    comparison = Comparison((FinishedRun.read(finished(tmp_path / "run", models=found["models"])),))
    assert comparison.baseline == "int8_qat" and [row["loss_ratio"] for row in comparison.rows()] == [1.0]
    assert "of int8_qat" in shown(comparison)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"validation_windows": WINDOWS | {"targets": "xyz"}}, "other validation windows: data.path, data.lookback"),
        ({"validation_windows": WINDOWS | {"targets": "xyz", "count": 150}}, "other validation windows (150 and 200): data.path"),
        ({"validation_windows": WINDOWS | {"loss_scale": [1.0, 2.0, 3.1]}}, "the loss is in another scale: that of the training part's"),
        ({"val": summary()["val"] | {"q_risk": {"0.5": 0.4}}}, "other quantiles: model.quantiles differs"),
        ({"validation_windows": None}, "does not say which windows it was measured on"),
    ],
)
def test_what_does_not_compare_is_flagged(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    runs = finished(tmp_path / "one"), finished(tmp_path / "two", "second", **changes)
    comparison = Comparison(tuple(map(FinishedRun.read, runs)))
    found = comparison.as_dict()
    assert not found["comparable"] and len(found["differences"]) == 1
    assert found["differences"][0].startswith("second: ") and reason in found["differences"][0]
    assert [row["loss_ratio"] for row in found["models"]] == [1.0, pytest.approx(1.2), None, None]
    text = shown(comparison)
    assert f"not comparable: {found['differences'][0]}\n" in text and text.count("–") == 2
    backwards = Comparison(tuple(map(FinishedRun.read, reversed(runs))))
    assert len(backwards.differences()) == 1  # and a run always compares with itself
    assert [row["loss_ratio"] for row in backwards.rows()][:2] == [1.0, pytest.approx(1.2)]


def test_rounding_of_the_scale_makes_no_other_one(tmp_path: Path) -> None:
    other = finished(tmp_path / "two", validation_windows=WINDOWS | {"loss_scale": [1.0, 2.0, 3.0000001]})
    assert FinishedRun.read(other).differences(FinishedRun.read(finished(tmp_path / "one"))) == []


def test_another_machine_is_noted(tmp_path: Path) -> None:
    runs = finished(tmp_path / "one"), finished(tmp_path / "two", "second")
    env = json.loads((runs[1] / "env.json").read_text())
    (runs[1] / "env.json").write_text(json.dumps(env | {"cpu_count": 64, "packages": {"onnxruntime": "1.23"}}))
    comparison = Comparison(tuple(map(FinishedRun.read, runs)))
    assert comparison.differences() == []
    words = "second: latency and memory were measured on Linux, 64 CPUs, onnxruntime 1.23, those of the first run on Linux, 2 CPUs"
    assert comparison.elsewhere() == [words] and f"note: {words}\n" in shown(comparison)


def test_an_older_run_kept_nothing(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    entries = json.loads((folder / "summary.json").read_text())
    for model in entries["models"].values():
        del model["kept_float"]
    (folder / "summary.json").write_text(json.dumps(entries))
    assert [row["kept_float"] for row in Comparison((FinishedRun.read(folder),)).rows()] == [[], []]


def into_a_folder_of_runs(folder: Path) -> None:
    (folder / "summary.json").unlink()
    for name in ("old", "new"):
        finished(folder / name)


@pytest.mark.usefixtures("no_run")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "the run did not finish: continue with .* --resume"),
        (lambda folder: [path.unlink() for path in folder.glob("*.*")], "allowed: a recipe, or the folder of a finished run"),
        (into_a_folder_of_runs, r"cannot be read: No such file or directory; did you mean a run below it, as .*old\?"),
        (lambda folder: (folder / "summary.json").write_text("{"), "is no JSON"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "found a list; allowed: what a run writes there"),
        (lambda folder: (folder / "summary.json").write_text(json.dumps({"status": "failed: disk full"})), "it says: failed: disk full"),
        (lambda folder: (folder / "env.json").write_text("{}"), r"lack what a run of this version writes \(KeyError\('packages'\)\)"),
        (lambda folder: (folder / "summary.json").write_text('{"status": "ok", "models": [1]}'), "lack what a run of this version writes"),
        (lambda folder: (folder / "summary.json").write_text("{}"), "it says: nothing"),
        (lambda folder: (folder / "summary.json").write_text(json.dumps(summary() | {"models": {}})), "the run exported no model"),
        (lambda folder: (folder / "env.json").unlink(), r"env\.json: cannot be read: No such file"),
    ],
)
def test_folders_that_are_no_finished_run_are_refused(
    tmp_path: Path, spoil: Callable[[Path], object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(tmp_path / "run")
    spoil(folder)
    with pytest.raises(CompareError, match=message):
        compare([RECIPE, folder], [], Console(quiet=True))  # the recipe before it is not run
    assert main(["compare", str(folder)]) == 2
    assert "error: " in capsys.readouterr().err


def leave(recipe: Recipe, *, console: Console) -> None:
    """As a run that is over at once."""
    console.print_line(f"ran {recipe.name}, {recipe.train.epochs} epochs")
    assert recipe.out is not None
    recipe.out.parent.mkdir(parents=True, exist_ok=True)
    finished(recipe.out, recipe.name)
    (recipe.out / "recipe.yaml").write_text(identity(recipe))


def test_recipes_are_run_with_the_overrides_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tftq.jobs.compare, "run", leave)
    done = finished(tmp_path / "done", "done")
    arguments = [str(done), str(RECIPE), "train.epochs=2", f"out={tmp_path / 'new'}"]
    assert main(["compare", *arguments, "--json"]) == 0
    streams = capsys.readouterr()
    assert [row["run"] for row in json.loads(streams.out)["models"]] == 2 * ["done"] + 2 * ["ptq_int8"]
    assert "ran ptq_int8, 2 epochs" in streams.err  # nothing but the document is on standard output
    monkeypatch.undo()
    written = tmp_path / "new" / "recipe.yaml"
    written.write_text(written.read_text().replace("  clip_norm: 1.0\n", ""))  # as an older version would, which knew no such option
    assert main(["compare", *arguments]) == 0
    assert f"ptq_int8: finished before, in {tmp_path / 'new'}" in capsys.readouterr().out


def test_a_recipe_without_a_folder_gets_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tftq.jobs.compare, "run", leave)
    (made,) = compare([RECIPE], [], Console(quiet=True)).runs
    assert made.folder.parent == Path("runs") / "ptq_int8" and made.folder.is_dir()


@pytest.mark.usefixtures("no_run")
def test_what_cannot_be_run_is_refused_before_anything_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, model = str(finished(tmp_path / "done")), tmp_path / "fp32.onnx"
    model.write_bytes(b"\x08\xff")
    (tmp_path / "done" / "recipe.yaml").write_text(identity(load_recipe(RECIPE, ["seed=8"])))
    for words, message in (
        ([str(RECIPE), str(RECIPE), "model.hiden=3"], "did you mean model.hidden?"),
        ([str(RECIPE), str(tmp_path / "none")], "none: cannot be read"),
        ([folder, str(model)], "fp32.onnx: found a model; allowed: a recipe, or the folder of a finished run"),
        ([folder, "train.epochs=2"], "train.epochs=2 has no effect: only folders of finished runs are given"),
        ([str(RECIPE), str(RECIPE), f"out={tmp_path / 'run'}"], "would both write to"),
        ([str(RECIPE), f"out={tmp_path / 'done'}"], "done: holds something else than a run of ptq_int8 as given"),
    ):
        assert main(["compare", *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["compare", "train.epochs=2"])
    assert stop.value.code == 2 and "at least one recipe or folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RunFolderError("not empty"), 1, "error: not empty"),
        (OSError("disk full"), 1, "error: disk full"),
        (RecipeError("quant.prune.keep: 9"), 1, "error: quant.prune.keep: 9"),  # what only its data could tell
        (KeyboardInterrupt(), 130, "interrupted; what was finished can be given as folders"),
    ],
)
def test_a_run_that_fails(
    error: BaseException, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tftq.jobs.compare, "run", fail)
    assert main(["compare", str(RECIPE), f"out={tmp_path / 'run'}"]) == status
    streams = capsys.readouterr()
    assert words in streams.err and streams.out == ""


def test_an_option_without_effect_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tftq.jobs.compare, "run", leave)
    assert main(["compare", str(RECIPE), "model.form=paper", f"out={tmp_path / 'run'}"]) == 0
    assert "warning: model.knots has no effect" in capsys.readouterr().err


def test_a_real_run_says_what_it_was_measured_on(bars_run: Run) -> None:
    made = FinishedRun.read(bars_run.folder)
    windows = made.summary["validation_windows"]
    recipe = load_recipe(ROOT / "recipes" / "qat_int8.yaml")
    assert len(windows["targets"]) == 64 and len(windows["loss_scale"]) == recipe.data.horizon
    assert windows["count"] == made.summary["models"]["fp32"]["windows"]
    assert Comparison((made, made)).as_dict()["comparable"] and "onnxruntime" in made.machine
