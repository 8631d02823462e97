"""Train with too little memory: a batch that does not fit under a cap is halved until it does."""

import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.reference import RandomWindows, Size
from tftq.memory.timeline import MemoryRecorder
from tftq.train.context import TrainingData, Workplace
from tftq.train.stages import stage_settings
from tftq.train.trainer import Trainer


def shortage_row(size: Size, batch: int, device: torch.device, cap_bytes: int | None) -> dict[str, Any]:
    """Train for two epochs of one update each; report the final batch size and the bytes left over by failed attempts.

    Args:
        size: of the model and its windows.
        batch: windows to one update, more than fit at once.
        device: where to compute.
        cap_bytes: what the process may allocate on a GPU; None for no cap.

    Returns:
        The row; it passed where the update fitted in halves (or at once without a cap) and no byte was left.
    """
    recipe = size.recipe("none", "fp32", batch)
    torch.manual_seed(recipe.seed)
    model = size.model(recipe)
    train, validation = RandomWindows(size, batch), RandomWindows(size, batch, seed=2)
    with tempfile.TemporaryDirectory() as name, _capped(device, cap_bytes), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = Path(name)
        watch = MemoryRecorder(folder / "memory.jsonl", device)
        with watch.recording(model):
            trainer = Trainer(
                model,
                TrainingData(train, validation),
                replace(stage_settings(recipe, "train"), epochs=2),
                Workplace(folder, device, watch.timeline, "random windows"),
            )
            done = trainer.fit()
        records = [json.loads(line) for line in (folder / "memory.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = [record["allocated"] for record in records if record["phase"] == "EPOCH_END"]
    warned = sum("out of memory" in str(warning.message) for warning in caught)
    halved = done.batch_size < batch and done.out_of_memory >= 1
    return {
        "batch": batch,
        "forward_batch": done.batch_size,
        "times_out_of_memory": done.out_of_memory,
        "cap_bytes": cap_bytes,
        "train_peak_bytes": max(record["peak"] for record in records),
        "left_by_failures_bytes": ends[1] - ends[0],
        "loss": done.validation.loss,
        "updates": done.updates,
        "passed": halved == (cap_bytes is not None)
        and warned == done.out_of_memory
        and ends[1] == ends[0]
        and done.updates == 2
        and math.isfinite(done.validation.loss),
    }


@contextmanager
def _capped(device: torch.device, cap_bytes: int | None) -> Iterator[None]:
    """Let this process allocate no more than the cap, and afterwards what it could before there was any."""
    if cap_bytes is None:
        yield
        return
    torch.cuda.set_per_process_memory_fraction(cap_bytes / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
