"""What training holds at its peak, measured and planned, beside a textbook network and neuralforecast's TFT at the same sizes.

    python benchmarks/memory.py                     # every row; without neuralforecast (pip install 'tftq[peers]') its row is left out
    python benchmarks/memory.py --rows es225_fp32   # some of them

The reference model (5 static, 210 observed, 10 known features, hidden 256, 8 heads, 2 LSTM layers, 60 -> 10): three updates on random
windows, the byte counter on every operator, a fresh process each. Writes benchmarks/results/memory.json.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import textbook
import torch
from common import write_result
from torch import Tensor

from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.evaluate.loss import quantile_loss
from tftq.memory.counter import ByteCounter
from tftq.memory.timeline import MemoryRecorder
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.plan.training import Planner
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.recipe.load import load_recipe
from tftq.spec.inputs import Column, Inputs
from tftq.train.build import architecture_of
from tftq.train.context import TrainingData, Workplace
from tftq.train.device import seed_everything
from tftq.train.stages import qat_schedule, stage_settings
from tftq.train.trainer import Trainer

RECIPES = Path(__file__).parent.parent / "recipes"
UPDATES = 3
CPU = torch.device("cpu")
LEAN = ("model.gates=shared", "train.optimizer.name=adamw8bit")
PAPER = ("train.optimizer.name=adamw8bit", "train.optimizer.in_backward=true", "train.clip_norm=null")

# name: recipe, stage, overrides, MB to reach, MB of the first attempt
ROWS: dict[str, tuple[str, str, tuple[str, ...], int | None, int | None]] = {
    "es225_fp32": ("es225_fp32", "train", (), 620, 3096),
    "es225_fp16": ("es225_fp16", "train", (), 600, 1548),
    "es225_lean": ("es225_lean", "train", (), 300, 774),
    "es225_qat, of the tables": ("es225_qat", "qat", (), 250, None),
    "es225_lean, batch 256": ("es225_lean", "train", ("train.batch_size=256", "memory.budget_mb=700"), 700, None),
    "es225_lean, batch 256, in 160 MiB": ("es225_lean", "train", ("train.batch_size=256", "memory.budget_mb=160"), None, None),
    "folded, batch 8": ("es225_fp32", "train", ("model.form=folded", "model.knots=null", "train.batch_size=8"), 700, None),
    "folded, lean, batch 8": ("es225_fp32", "train", ("model.form=folded", "model.knots=null", "train.batch_size=8", *LEAN), None, None),
    "paper, batch 8": ("es225_fp32", "train", ("model.form=paper", "model.knots=null", "train.batch_size=8", *PAPER), 700, None),
}
PEERS: dict[str, tuple[Callable[[], tuple[torch.nn.Module, Callable[[], Tensor]]], int]] = {
    "textbook variable selection, batch 8": (lambda: textbook.textbook(reference_inputs(), 8), 8),
    "textbook variable selection, batch 32": (lambda: textbook.textbook(reference_inputs(), 32), 32),
    "neuralforecast, batch 8": (lambda: textbook.neuralforecast(reference_inputs(), 8), 8),
    "neuralforecast, batch 32": (lambda: textbook.neuralforecast(reference_inputs(), 32), 32),
}


def reference_inputs() -> Inputs:
    """The columns of the first attempt's model."""
    counts = {"static": 5, "observed": 210, "known": 10}
    return Inputs(tuple(Column(f"{role}_{i}", role) for role, count in counts.items() for i in range(count)), 60, 10)  # type: ignore[arg-type]


class RandomWindows:
    """Windows of noise, made as they are asked for."""

    def __init__(self, inputs: Inputs, count: int) -> None:
        self.inputs, self.count = inputs, count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Any) -> Batch:
        size = len(indices)
        tensors = {name: torch.randn(shape) for name, shape in self.inputs.shapes(size).items()}
        return Batch(tensors["history"], tensors["future"], tensors["static"], torch.randn(size, self.inputs.horizon))


def unit_scaling(variables: int) -> ColumnScaling:
    """Numbers around zero left as they are, knots over three standard deviations."""
    zeros, ones = np.zeros(variables, np.float32), np.ones(variables, np.float32)
    return ColumnScaling(zeros, ones, np.zeros(variables, bool), -3 * ones, 3 * ones)


def measure_recipe(name: str) -> dict[str, Any]:
    """Train a recipe's model for three updates through the real trainer, inside the batch that its plan finds, and plan it."""
    file, stage, overrides, target_mb, first_attempt_mb = ROWS[name]
    recipe = load_recipe(RECIPES / f"{file}.yaml", [*overrides, "train.schedule.warmup=0", "train.schedule.cooldown=0", "train.epochs=1"])
    inputs = reference_inputs()
    scaling = Scaling(unit_scaling(len(inputs.history)), unit_scaling(len(inputs.static)))
    target_scaling = TargetScaling(np.zeros(10, np.float32), np.ones(10, np.float32))
    plan = Planner(inputs, scaling, target_scaling, CPU).within_budget(recipe)[stage]
    seed_everything(recipe.seed)
    windows = RandomWindows(inputs, UPDATES * recipe.train.batch_size)
    model = TemporalFusionTransformer(inputs, scaling, target_scaling, architecture_of(recipe.model))
    phases = qat_schedule(recipe, len(windows)) if stage == "qat" else None
    if phases is not None:
        model = prepared_copy(tabulate(model)[0], lstm=recipe.quant.lstm)
        calibrate(model, [windows.batch(range(32))])
        model.train()
    with tempfile.TemporaryDirectory() as folder:
        watch = MemoryRecorder(Path(folder) / "memory.jsonl", CPU)
        with watch.recording(model):
            trainer = Trainer(
                model,
                TrainingData(windows, RandomWindows(inputs, 32)),
                replace(stage_settings(recipe, stage), forward_batch=plan.batch_size),
                Workplace(Path(folder), CPU, watch.timeline),
                on_update=(lambda update: phases.apply(model, update)) if phases else (lambda update: None),
            )
            training = trainer.fit()
        measured = watch.timeline.peak_bytes
    assert measured is not None
    return {
        "name": name,
        "batch": recipe.train.batch_size,
        "forward_batch": plan.batch_size,
        "precision": recipe.train.precision,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_bytes": measured,
        "planned_peak_bytes": plan.update.peak_bytes,
        "planned_over_measured": plan.update.peak_bytes / measured,
        "planned_components_bytes": plan.update.components,
        "to_reach_mb": target_mb,
        "first_attempt_mb": first_attempt_mb,
        "update_s": recipe.train.batch_size / training.samples_per_s,
        "resident_mb": psutil.Process().memory_info().rss / 1e6,
    }


def measure_peer(name: str) -> dict[str, Any]:
    """Two updates of somebody else's network with our loss and optimizer: the first makes the optimizer's state, the second has it all."""
    build, batch = PEERS[name]
    with counting() as counter:
        model, forward = build()
        counter.reset_peak()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        quantiles, scale, target = torch.tensor([0.1, 0.5, 0.9]), torch.ones(10), torch.randn(batch, 10)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            quantile_loss(forward(), target, quantiles, scale).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
    return {
        "name": name,
        "batch": batch,
        "precision": "fp32",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_bytes": counter.peak_bytes,
        "update_s": seconds[-1],
        "resident_mb": psutil.Process().memory_info().rss / 1e6,
    }


@contextmanager
def counting() -> Iterator[ByteCounter]:
    """A counter around everything that is built and computed within."""
    torch.manual_seed(0)
    with ByteCounter() as counter:
        yield counter


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for a person to read."""
    lines = [f"{'':36} {'batch':>6} {'measured':>9} {'planned':>9} {'to reach':>9} {'first':>9} {'update':>8}"]
    for row in rows:
        figures = row["peak_bytes"] / 1e6, row.get("planned_peak_bytes", 0) / 1e6, row.get("to_reach_mb"), row.get("first_attempt_mb")
        cells = [f"{figure:6.0f} MB" if figure else "" for figure in figures]
        lines.append(f"{row['name']:36} {row['batch']:6} {' '.join(f'{cell:>9}' for cell in cells)} {row['update_s']:6.2f} s")
    return "\n".join(lines)


def main() -> None:
    """Measure each row in a process of its own, and write them together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *PEERS], metavar="NAME", help=f"of {', '.join([*ROWS, *PEERS])}")
    parser.add_argument("--one", choices=[*ROWS, *PEERS], help=argparse.SUPPRESS)  # in the fresh process
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps((measure_recipe if chosen.one in ROWS else measure_peer)(chosen.one)))
        return
    rows = []
    for name in chosen.rows or [*ROWS, *PEERS]:
        if name.startswith("neuralforecast") and importlib.util.find_spec("neuralforecast") is None:
            print(f"{name}: left out, neuralforecast is not installed (pip install 'tftq[peers]')", file=sys.stderr)
            continue
        command = [sys.executable, __file__, "--one", name]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(result.stdout.splitlines()[-1]))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if chosen.rows is None:
        print(write_result("memory", rows))


if __name__ == "__main__":
    main()
