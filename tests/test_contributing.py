"""The worked examples of CONTRIBUTING.md, followed to the letter in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from tests.data.helpers import BEGIN, MINUTE
from tests.serving import bars_model
from tftq.serve.live import Live

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

# What must hold once an example was followed.
OUTCOMES = {
    "a feature column": """
import numpy as np
from tftq.data.features.table import BAR_COLUMNS, bar_features
close = 100 * np.exp(np.random.default_rng(0).normal(0, 0.001, 80).cumsum())
bars = {name: close for name in ("open", "high", "low", "close")} | {"volume": np.ones(80)}
row = bar_features(bars)[BAR_COLUMNS.index("close_range_5")]
assert np.allclose(row[60], np.log(close[56:61]).max() - np.log(close[56:61]).min())
assert np.array_equal(bar_features({name: column[:70] for name, column in bars.items()})[BAR_COLUMNS.index("close_range_5")], row[:70])
""",
    "a format": """
import numpy as np, onnx
from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.export.graph import build_forecaster
from tftq.model.tabulate import tabulate
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.recipe.schema import Recipe
from tftq.spec.inputs import Column, Inputs
data = {"kind": "bars", "path": "x"}
assert Recipe.model_validate({"name": "d", "data": data, "export": {"formats": ["fp32", "fp32_batch"]}}).formats == ("fp32", "fp32_batch")
inputs = Inputs((Column("a", "observed"), Column("b", "known")), lookback=5, horizon=3)
ones, flat = np.ones(2, np.float32), np.zeros(2, bool)
scaling = Scaling(ColumnScaling(0 * ones, ones, flat, -9 * ones, 9 * ones), None)
target = TargetScaling(np.zeros(3, np.float32), np.ones(3, np.float32))
model = tabulate(TemporalFusionTransformer(inputs, scaling, target, Architecture(8, 2, 1, 0.1, (0.1, 0.5, 0.9), "knots", 4)))[0].eval()
def operators(format):
    return {node.op_type for node in onnx.load_from_string(build_forecaster(model, format, "y")).graph.node}
assert "Scan" in operators("fp32") and "Scan" not in operators("fp32_batch")
""",
    "an optimizer": """
import torch
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.optimizer import build_optimizer
model = torch.nn.Linear(2, 1)
before = model.weight.detach().clone()
optimizer = build_optimizer(model, OptimizerRecipe(name="sgd", lr=0.5, weight_decay=0))
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert torch.allclose(model.weight, before - 0.5)
""",
    "a model": """
import numpy as np, torch
from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.model.size import parameter_count
from tftq.recipe.schema import Recipe
from tftq.spec.inputs import Column, Inputs
from tftq.train.build import architecture_of, new_model
recipe = Recipe.model_validate({"name": "d", "data": {"kind": "bars", "path": "x"}, "model": {"kind": "direct", "hidden": 4}}).model
inputs = Inputs((Column("a", "observed"), Column("b", "known")), lookback=5, horizon=3)
ones, flat = np.ones(2, np.float32), np.zeros(2, bool)
scaling = Scaling(ColumnScaling(0 * ones, ones, flat, -9 * ones, 9 * ones), None)
model = new_model(recipe, inputs, scaling, TargetScaling(np.zeros(3, np.float32), np.ones(3, np.float32)))
forecast = model(torch.randn(7, 5, 2), torch.randn(7, 3, 1))
assert forecast.shape == (7, 3, 3) and (forecast.diff(dim=-1) >= 0).all()
assert sum(p.numel() for p in model.parameters()) == parameter_count(inputs, architecture_of(recipe))
""",
    "a verb": """
import contextlib, io
from tftq.cli import main
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    assert main(["columns", "--known"]) == 0
assert printed.getvalue().split()[0] == "minute_sin_1" and len(printed.getvalue().split()) == 11
""",
}


def edits_of(title: str) -> list[tuple[str, list[str]]]:
    """The edits of an example: the file of each, and its lines, marked as in a diff."""
    section = PAGE.split(f"## How to add {title}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    edits: list[tuple[str, list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("--- "):
            edits.append((line.removeprefix("--- "), []))
        else:
            edits[-1][1].append(line or " ")
    return edits


def follow(title: str, folder: Path) -> None:
    """Make the edits of an example in a copy of the package; each must fit one place."""
    for where, lines in edits_of(title):
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        path = folder / where.removeprefix("new ")
        if where.startswith("new "):
            assert not path.exists()
            path.write_text(after, encoding="utf-8")
        else:
            before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
            text = path.read_text(encoding="utf-8")
            assert text.count(before) == 1, f"{where}: {text.count(before)} places for\n{before}"
            path.write_text(text.replace(before, after), encoding="utf-8")


def test_a_raw_bar_passes_the_files_that_the_page_lists(tmp_path: Path) -> None:
    listed = re.findall(r"`(tftq/[\w/]+\.py)`", PAGE.split("**A raw bar to an INT8 forecast**")[1].split("\n\n")[0])
    bars_model(tmp_path / "m.onnx")
    live = Live(tmp_path / "m.onnx")
    close = 100 + np.sin(np.arange(61))
    bars = [dict.fromkeys(("open", "high", "low", "close"), price) | {"volume": 1.0} for price in close]
    times = [BEGIN + MINUTE * number for number in range(61)]
    for time, bar in zip(times[:-1], bars[:-1], strict=True):
        live.push({"timestamp": time, **bar})
    passed: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename.removeprefix(f"{ROOT}{os.sep}")
        if name.startswith("tftq") and name not in passed:
            passed.append(name)

    before = sys.gettrace()
    sys.settrace(note)
    try:
        forecast = live.push({"timestamp": times[-1], **bars[-1]})
    finally:
        sys.settrace(before)
    assert forecast is not None and len(passed) <= 15
    assert sorted(passed) == sorted(listed)


def test_every_example_is_followed() -> None:
    assert re.findall(r"^## How to add (.*)$", PAGE, re.MULTILINE) == list(OUTCOMES)


@pytest.mark.parametrize("title", OUTCOMES)
def test_an_example_does_what_it_says(title: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tftq", tmp_path / "tftq", ignore=shutil.ignore_patterns("__pycache__"))
    follow(title, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OUTCOMES[title]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
