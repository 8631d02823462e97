"""Packages of extras: every verb names the command that installs a missing one, in one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.runs import ROOT
from tftq.spec.extras import EXTRAS, explain_missing

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from tftq.cli import main
sys.exit(main(sys.argv[2:]))
"""
ONLY_SERVE = ",".join((*EXTRAS["train"], *EXTRAS["rl"]))
NOTHING = ",".join((ONLY_SERVE, *EXTRAS["serve"]))


def without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call `tftq` in a process without these packages."""
    return subprocess.run([sys.executable, "-c", MISSING, packages, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("missing", "arguments", "package", "extra"),
    [
        (ONLY_SERVE, ("run", "recipes/qat_int8.yaml"), "torch", "train"),
        (ONLY_SERVE, ("run", "recipes/dqn.yaml"), "torch", "train"),
        (ONLY_SERVE, ("plan", "recipes/qat_int8.yaml"), "torch", "train"),
        (ONLY_SERVE, ("compare", "recipes/qat_int8.yaml"), "torch", "train"),
        (NOTHING, ("predict", "model.onnx", "test_data/structured.parquet"), "onnxruntime", "serve"),
        (NOTHING, ("ensemble", "recipes/ensemble.yaml"), "onnxruntime", "serve"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(missing: str, arguments: tuple[str, ...], package: str, extra: str) -> None:
    done = without(missing, *arguments)
    line = f"error: needs {package}, which is not installed: pip install 'tftq[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_recipes_are_checked_without_any_extra() -> None:
    done = without(NOTHING, "validate", "recipes/structured_qat.yaml")
    assert done.returncode == 0 and "name: structured_qat" in done.stdout and done.stderr == ""


def test_a_package_that_no_extra_installs_is_a_fault_of_ours() -> None:
    assert explain_missing(ModuleNotFoundError("No module named 'tftq.nothing'", name="tftq.nothing")) is None
    assert explain_missing(ModuleNotFoundError("No module")) is None


def test_the_extras_install_what_the_lines_promise() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    distributions = {"pynvml": "nvidia-ml-py", "stable_baselines3": "stable-baselines3"}
    for extra, packages in EXTRAS.items():
        lines = " ".join(extras[extra]).lower()
        assert all(distributions.get(package, package) in lines for package in packages), extra


def test_recipes_and_data_are_in_the_package() -> None:
    """Links to the folders of the checkout; a wheel holds copies."""
    for folder in ("recipes", "test_data"):
        assert (ROOT / "tftq" / folder).resolve() == Path(ROOT / folder).resolve()
