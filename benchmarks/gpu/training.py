"""Measure training of the reference model on a device: time per update, memory of each phase, and the planned peak."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.reference import RandomWindows, Size
from tftq.memory.timeline import MemoryRecorder
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.plan.training import Planner
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.recipe.schema import Recipe
from tftq.train.context import TrainingData, Workplace
from tftq.train.stages import qat_schedule, stage_settings
from tftq.train.trainer import Trainer

WARM_UP = 10  # updates that are not timed: kernels load, the allocator grows
UPDATES = 40
VALIDATION_BATCHES = 4
TARGET_MS = 5.0  # for an update from one window
FIRST_ATTEMPT_MS = 57.0  # what it took before this project


def training_row(size: Size, stage: str, precision: str, batch: int, device: torch.device) -> dict[str, Any]:
    """Train for an epoch by the real loop, validate, and measure time and memory.

    Args:
        size: of the model and its windows.
        stage: "train", or "qat" for the tables through fake quantization.
        precision: fp32, fp16 or bf16.
        batch: windows to one update.
        device: where to compute.

    Returns:
        The row. Reserved bytes are None where the device has no such figure; `left_by_validation_bytes` should be 0.
    """
    recipe = size.recipe("qat" if stage == "qat" else "none", precision, batch)
    planned = Planner(size.inputs(), size.scaling(), size.target_scaling(), device).plan(recipe)[stage].update.peak_bytes
    torch.manual_seed(recipe.seed)
    model = size.model(recipe)
    if stage == "qat":
        model = _quantized(model, size, device)
    train, validation = RandomWindows(size, UPDATES * batch), RandomWindows(size, VALIDATION_BATCHES * batch, seed=2)

    with tempfile.TemporaryDirectory() as folder:
        watch = MemoryRecorder(Path(folder) / "memory.jsonl", device)
        clock = _Clock(device, _phases(recipe, model, len(train)) if stage == "qat" else lambda update: None)
        with watch.recording(model):
            trainer = Trainer(
                model,
                TrainingData(train, validation),
                stage_settings(recipe, stage),
                Workplace(Path(folder), device, watch.timeline, "random windows"),
                on_update=clock,
            )
            done = trainer.fit()
        records = [json.loads(line) for line in (Path(folder) / "memory.jsonl").read_text(encoding="utf-8").splitlines()]
        timeline = watch.timeline

    return {
        "stage": stage,
        "precision": precision,
        "batch": batch,
        "step_ms": clock.median_ms(),
        **({"target_ms": TARGET_MS, "first_attempt_ms": FIRST_ATTEMPT_MS} if batch == 1 else {}),
        **_peaks(records, "train", ("TRAIN_BATCH", "AFTER_TRAINING")),
        **_peaks(records, "validate", ("VALIDATION_START", "VALIDATION_END")),
        "planned_train_peak_bytes": planned,
        "left_by_validation_bytes": _allocated(records, "AFTER_VALIDATION") - _allocated(records, "BEFORE_VALIDATION"),
        "loss": done.validation.loss,
        "updates": done.updates,
        "skipped_updates": done.skipped,
        "records_expected": timeline.expected,
        "records_recorded": timeline.recorded,
    }


class _Clock:
    """Notes when each update begins, the device having finished what came before.

    Args:
        device: whose work an update is.
        on_update: what else is to be done before an update.
    """

    def __init__(self, device: torch.device, on_update: Callable[[int], None]) -> None:
        self.device, self.on_update = device, on_update
        self.seconds: list[float] = []

    def __call__(self, update: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds.append(time.perf_counter())
        self.on_update(update)

    def median_ms(self) -> float:
        """The median time from update to update, gathering of the batch included, warm-up left out."""
        kept = self.seconds[WARM_UP:]
        return 1e3 * statistics.median(later - earlier for earlier, later in pairwise(kept))


def _quantized(model: TemporalFusionTransformer, size: Size, device: torch.device) -> TemporalFusionTransformer:
    prepared = prepared_copy(tabulate(model)[0], lstm="fp32").to(device)
    some = RandomWindows(size, 64, seed=3)
    calibrate(prepared, (some.batch(indices).to(device) for indices in torch.arange(len(some)).split(16)))
    return prepared.train()


def _phases(recipe: Recipe, model: TemporalFusionTransformer, windows: int) -> Callable[[int], None]:
    schedule = qat_schedule(recipe, windows)
    return lambda update: schedule.apply(model, update)


def _peaks(records: list[dict[str, Any]], name: str, phases: tuple[str, ...]) -> dict[str, int | None]:
    """The most that was allocated and reserved in some phases; the allocator gives nothing back within them."""
    chosen = [record for record in records if record["phase"].startswith(phases)]
    reserved = [record["reserved"] for record in chosen if record["reserved"] is not None]
    return {
        f"{name}_peak_bytes": max(record["peak"] for record in chosen),
        f"{name}_reserved_bytes": max(reserved, default=None),
    }


def _allocated(records: list[dict[str, Any]], phase: str) -> int:
    return next(record["allocated"] for record in records if record["phase"] == phase)
