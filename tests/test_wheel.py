"""The wheel and the extra `serve` alone, in a virtual environment of their own: predict, a stream and an ensemble run there."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.runs import ROOT
from tests.serve.files import STREAM, serving_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the environment; PIP_CONSTRAINT pins versions there as well."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: building leaves files beside the package
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("tftq", "recipes", "test_data"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    interpreter = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([interpreter, "-m", "pip", "install", "-q", f"{wheel}[serve]"], check=True, capture_output=True)
    return interpreter


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    return serving_files(tmp_path_factory.mktemp("serving"))


def call(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python outside the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def test_nothing_that_trains_is_installed(python: Path, tmp_path: Path) -> None:
    listed = call(python, "-m", "pip", "list", "--format", "freeze", cwd=tmp_path).stdout.lower()
    names = {line.partition("==")[0] for line in listed.split()}
    assert {"tftq", "onnxruntime", "numpy", "pyarrow", "pydantic"} <= names
    assert not {"torch", "onnx", "onnxscript", "nvidia-ml-py", "psutil", "onnxruntime-gpu"} & names


@pytest.mark.parametrize("name", ["predict", "predict a table", "predict to a file", "predict --last", "ensemble"])
def test_a_command_runs(python: Path, files: dict[str, tuple[str, ...]], name: str, tmp_path: Path) -> None:
    done = call(python, "-m", "tftq.cli", *files[name], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_a_stream_runs(python: Path, files: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    done = call(python, "-c", STREAM, *files["stream"], cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "(3, 3)\n")


def test_the_command_is_installed_and_its_recipes_can_be_copied(python: Path, tmp_path: Path) -> None:
    """As the README says: without a checkout they are in the package."""
    copy = "import shutil, tftq\nfor name in ('recipes', 'test_data'): shutil.copytree(f'{tftq.__path__[0]}/{name}', name)"
    assert call(python, "-c", copy, cwd=tmp_path).returncode == 0
    tftq = python.with_name("tftq")
    done = subprocess.run([tftq, "validate", "recipes/qat_int8.yaml"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0 and f"path: {tmp_path}/test_data/ES_FUT_small.parquet" in done.stdout
    done = subprocess.run([tftq, "run", "recipes/qat_int8.yaml"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: needs torch, which is not installed: pip install 'tftq[train]'\n")
