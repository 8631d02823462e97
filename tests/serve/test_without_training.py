"""Everything that serves runs in a fresh process in which nothing that trains can be imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import ROOT
from tests.serve.files import STREAM, serving_files

HOOK = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript", "pynvml", "psutil"):
            sys.stderr.write(f"imported {name}\\n")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Forbidden())
"""
COMMAND = "from tftq.cli import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    return serving_files(tmp_path_factory.mktemp("serving"))


@pytest.mark.parametrize("name", ["predict", "predict a table", "predict to a file", "predict --last", "ensemble", "stream"])
def test_it_serves(files: dict[str, tuple[str, ...]], name: str) -> None:
    program = HOOK + (STREAM if name == "stream" else COMMAND)
    done = subprocess.run([sys.executable, "-c", program, *files[name]], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_ensemble_was_whole(files: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    """Every kind of member answers, and the answers are judged."""
    out = tmp_path / "run"
    arguments = (*files["ensemble"][:2], f"out={out}")
    subprocess.run([sys.executable, "-c", HOOK + COMMAND, *arguments], capture_output=True, check=True, cwd=ROOT)
    summary = json.loads((out / "summary.json").read_text())
    assert all(member["states"]["ok"] > 100 for member in summary["members"].values()) and len(summary["members"]) == 3
    assert summary["backtest"] is not None and (out / "report.html").is_file()


LIGHT = """
import os, sys
from tftq.cli import main
assert main(sys.argv[1:]) == 0
heavy = {"pyarrow.compute", "pyarrow.csv", "rich", "jinja2"} & {*sys.modules}
print(heavy, os.environ["ARROW_DEFAULT_MEMORY_POOL"], file=sys.stderr)
"""


def test_a_forecast_of_the_usual_file_imports_no_more_than_it_needs(
    files: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these takes 5 to 9 MB, as Arrow's own pool does, which the user may choose."""
    for chosen in (None, "mimalloc"):
        monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
        if chosen is not None:
            monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", chosen)
        command = [sys.executable, "-c", LIGHT, *files["predict"], "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.stderr == f"set() {chosen or 'system'}\n"
