"""The command line: verbs, exit statuses, and what goes to which stream."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import tftq.cli
import tftq.kinds
from tftq.cli import VERBS, Verb, main
from tftq.errors import DataError
from tftq.recipe.load import load_recipe, recipe_hash, resolved_yaml

RECIPE = "name: first\ndata: {kind: bars, path: bars.parquet}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_validate_prints_the_resolved_recipe(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(recipe), "train.epochs=3"]) == 0
    streams = capsys.readouterr()
    assert streams.out == resolved_yaml(load_recipe(recipe, ["train.epochs=3"])) and streams.err == ""


def test_validate_prints_one_json_document(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["train.optimizer.lr=1e-5", "model.knots=16"]  # the second has no effect on the paper form
    assert main(["validate", "--json", str(recipe), *overrides, "model.form=paper"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out)
    assert found["recipe"]["train"]["optimizer"]["lr"] == 1e-5 and found["recipe"]["data"]["path"] == str(recipe.parent / "bars.parquet")
    with pytest.warns(UserWarning, match="no effect"):
        assert found["recipe_hash"] == recipe_hash(load_recipe(recipe, [*overrides, "model.form=paper"]))
    reason = "model.form is not knots, so that each variable gets the knots that its curve needs"
    assert streams.err == f"warning: model.knots has no effect: {reason}\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_validate_lists_every_error(recipe: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *flags, str(recipe), "train.epochs=0", "model.hiden=8"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "2 errors" in streams.err and "train.epochs" in streams.err and "did you mean model.hidden?" in streams.err


def test_validate_tells_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err


def test_run_does_what_its_recipe_says_and_returns_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(path: Path, overrides: Sequence[str], *, resume: bool) -> None:
        calls.append((path, overrides, resume))
        raise DataError("no bar")

    monkeypatch.setattr(tftq.kinds, "run", run)
    assert main(["run", "--resume", "recipe.yaml", "out=x"]) == 1
    assert main(["run", "recipe.yaml", "--resume", "out=x", "seed=3"]) == 1  # options may stand anywhere
    assert calls == [(Path("recipe.yaml"), ["out=x"], True), (Path("recipe.yaml"), ["out=x", "seed=3"], True)]


@pytest.mark.parametrize(("arguments", "advice"), [(["trian"], ""), (["pedict", "--last"], "did you mean predict?"), ([], "")])
def test_another_verb_is_refused_by_naming_those_there_are(arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    words = capsys.readouterr().err
    assert advice in words and (not arguments or all(name in words for name in VERBS))


def test_an_unknown_option_is_refused_by_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["validate", "recipe.yaml", "--yaml"])
    assert stop.value.code == 2 and "tftq validate: error: unrecognized arguments: --yaml" in capsys.readouterr().err


def test_help_describes_every_verb_without_importing_any() -> None:
    code = "import sys, tftq.cli\ntry: tftq.cli.main(['--help'])\nexcept SystemExit: print({'torch', 'pydantic', 'rich'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
    words = " ".join(done.stdout.split())
    assert all(f"{name} {description}" in words for name, description in VERBS.items())


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_that_waits_for_neither_torch_nor_rich(name: str) -> None:
    code = (
        f"import sys, tftq.cli\ntry: tftq.cli.main(['{name}', '--help'])\nexcept SystemExit: print({{'torch', 'rich'}} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"usage: tftq {name} [-h]" in done.stdout and done.stdout.endswith("set()\n")


@pytest.mark.parametrize(("module", "usage"), [("tftq.cli", "usage: tftq [-h]"), ("tftq.run", "usage: tftq run [-h]")])
def test_the_modules_run(module: str, usage: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and usage in done.stderr


def test_ctrl_c_ends_any_verb_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> Verb:
        raise KeyboardInterrupt

    monkeypatch.setattr(tftq.cli, "load_verb", interrupted)
    assert main(["plan"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("tftq ")
