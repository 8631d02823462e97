"""The run folder: which one a run may write into, and what it leaves there."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tftq.errors import RecipeError, RunFolderError
from tftq.jobs.environment import Device, environment
from tftq.jobs.folder import RunFolder
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe

CPU = environment(Device("cpu", 1), 7)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "given.yaml"
    path.write_text("name: first\nout: run\ndata: {kind: bars, path: bars.parquet}\n")
    return load_recipe(path)


def test_a_new_folder_says_what_runs_on_what(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder.open(recipe, CPU, resume=False)
    assert folder.path == tmp_path / "run"
    assert load_recipe(folder.path / "recipe.yaml", ["out=run"]) == recipe.model_copy(update={"out": Path("run").absolute()})
    found = json.loads((folder.path / "env.json").read_text())
    assert found["seed"] == 7 and found["device"] == "cpu" and found["driver"] is None
    assert found["packages"]["torch"] == version("torch") and found["started"].endswith("Z")
    assert {entry.name for entry in folder.path.iterdir()} == {"recipe.yaml", "env.json"}


def test_without_out_the_folder_is_named_by_recipe_and_time(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = RunFolder.open(recipe.model_copy(update={"out": None}), CPU, resume=False).path
    assert path.parent == Path("runs/first")
    assert json.loads((path / "env.json").read_text())["started"].replace(":", "-") == path.name


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "stopped: KeyboardInterrupt"),
        (BrokenPipeError(), "stopped: BrokenPipeError"),
        (OSError("disk full"), "failed: OSError: disk full"),
    ],
)
def test_a_run_that_is_going_or_was_stopped_shows_nothing_of_the_one_before(recipe: Recipe, error: BaseException, status: str) -> None:
    folder = RunFolder.open(recipe, CPU, resume=False)
    folder.write_json("summary.json", {"status": "ok"})
    folder.write("report.html", "of the run before")

    def summary() -> dict[str, str]:
        assert not (folder.path / "report.html").exists()
        found: dict[str, str] = json.loads((folder.path / "summary.json").read_text())
        return found

    with pytest.raises(type(error)), folder.recording(name="first"):
        assert summary() == {"name": "first", "status": "running"}
        raise error
    assert summary() == {"name": "first", "status": status}


def test_an_empty_folder_is_taken(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert (RunFolder.open(recipe, CPU, resume=False).path / "recipe.yaml").exists()


def test_a_folder_that_holds_something_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"run: is not empty; choose another out=.*--resume"):
        RunFolder.open(recipe, CPU, resume=False)
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("resume", "words"), [(False, "run: is a file; choose another out="), (True, "no recipe.yaml of a run to resume")])
def test_a_file_is_no_folder(recipe: Recipe, tmp_path: Path, resume: bool, words: str) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunFolderError, match=words):
        RunFolder.open(recipe, CPU, resume=resume)
    assert (tmp_path / "run").read_text() == "mine"


def test_one_process_at_a_time_is_at_a_run(recipe: Recipe) -> None:
    folder = RunFolder.open(recipe, CPU, resume=False)
    with folder.recording(name="first"):
        folder.write_json("summary.json", {"name": "first"})
        refused = pytest.raises(RunFolderError, match=r"run: another run is writing here; stop it or wait for it, or choose another out=")
        with refused, RunFolder(folder.path).recording(name="second"):
            raise AssertionError
        assert json.loads((folder.path / "summary.json").read_text()) == {"name": "first"}
    with folder.recording(name="third"):
        pass
    with pytest.raises(KeyError), folder.recording(name="fourth"):
        raise KeyError
    with folder.recording(name="fifth"):
        assert json.loads((folder.path / "summary.json").read_text())["name"] == "fifth"


def test_a_run_of_the_same_recipe_is_resumed_as_it_lies(recipe: Recipe) -> None:
    first = RunFolder.open(recipe, CPU, resume=False)
    before = {entry: entry.read_bytes() for entry in first.path.iterdir()}
    assert RunFolder.open(recipe, CPU, resume=True).path == first.path
    assert {entry: entry.read_bytes() for entry in first.path.iterdir()} == before


def test_a_run_whose_folder_moved_is_resumed(recipe: Recipe, tmp_path: Path) -> None:
    RunFolder.open(recipe, CPU, resume=False).path.rename(tmp_path / "moved")
    moved = recipe.model_copy(update={"out": tmp_path / "moved"})
    assert RunFolder.open(moved, CPU, resume=True).path == tmp_path / "moved"


def test_nothing_is_resumed_where_no_run_began(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no recipe.yaml of a run to resume there; run without --resume"):
        RunFolder.open(recipe, CPU, resume=True)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_recipe_is_not_resumed(recipe: Recipe) -> None:
    RunFolder.open(recipe, CPU, resume=False)
    with pytest.raises(
        RunFolderError,
        match=r"was begun by another recipe; resume with its own, .*recipe\.yaml out=.*run --resume, or(.|\n)*\n-seed: 7\n\+seed: 8",
    ):
        RunFolder.open(recipe.model_copy(update={"seed": 8}), CPU, resume=True)


def test_an_option_that_there_was_none_of_has_its_default(recipe: Recipe) -> None:
    written = RunFolder.open(recipe, CPU, resume=False).path / "recipe.yaml"
    whole, line = written.read_text(), "  clip_norm: 1.0\n"
    assert line in whole
    written.write_text(whole.replace(line, ""))
    RunFolder.open(recipe, CPU, resume=True)
    other = recipe.model_copy(update={"train": recipe.train.model_copy(update={"clip_norm": 2.0})})
    with pytest.raises(RunFolderError, match=r"(?s)was begun by another recipe; .*\n-  clip_norm: 1\.0\n\+  clip_norm: 2\.0$"):
        RunFolder.open(other, CPU, resume=True)


def test_a_recipe_that_this_version_does_not_take_is_not_resumed(recipe: Recipe) -> None:
    written = RunFolder.open(recipe, CPU, resume=False).path / "recipe.yaml"
    written.write_text(written.read_text() + "window: 60\n")
    with pytest.raises(
        RecipeError, match=r"(?s)run: was begun by a recipe that this version of tftq does not take; .*\n  window .*unknown key"
    ):
        RunFolder.open(recipe, CPU, resume=True)


def test_to_resume_a_folder_must_be_named(recipe: Recipe) -> None:
    with pytest.raises(RunFolderError, match="name its folder with out="):
        RunFolder.open(recipe.model_copy(update={"out": None}), CPU, resume=True)


def test_a_start_that_is_interrupted_leaves_no_run_to_resume(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: RunFolder, name: str, content: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.open(recipe, CPU, resume=False)
    with pytest.raises(RunFolderError, match=r"no recipe.yaml"):
        RunFolder.open(recipe, CPU, resume=True)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    assert folder.write("a.txt", "first") == tmp_path / "a.txt"
    with pytest.raises(UnicodeEncodeError):  # fails in the middle of the text
        folder.write("a.txt", "second \ud800")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write("a.txt", "third")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "first"


def test_json_has_no_place_for_what_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunFolder(tmp_path).write_json("a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
    RunFolder(tmp_path).write_json("a.json", {"loss": 0.5})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": 0.5}


def test_a_folder_needs_neither_torch_nor_ensembles() -> None:
    code = (
        "import sys, tftq.jobs.folder, tftq.jobs.environment; print([name for name in ('torch', 'pynvml', 'onnx') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
