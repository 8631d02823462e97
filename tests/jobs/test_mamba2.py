"""A Mamba-2 through the main job: the same files, plan, records and report as of a TFT, without what only a TFT has."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.small import small_mamba2
from tests.runs import ROOT, Run
from tests.train.stand_ins import RealWindows, tiny_trainer
from tftq.jobs.compare import Comparison, FinishedRun
from tftq.serve.forecast import predict
from tftq.spec.metadata import read_metadata
from tftq.train.trainer import Trainer

BARS = ROOT / "test_data" / "ES_FUT_small.parquet"
SMALL = (
    "model.hidden=16",
    "model.layers=1",
    "model.state=8",
    "model.head_dim=8",
    "train.epochs=1",
    "quant.qat.epochs=1",
    "quant.calibration_windows=32",
)


@pytest.fixture(scope="module")
def mamba2_run(do_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return do_run("mamba2.yaml", tmp_path_factory.mktemp("mamba2") / "run", *SMALL, "quant.sensitivity=true", "export.formats=[int8_qat]")


def test_a_run_leaves_what_a_run_leaves(mamba2_run: Run) -> None:
    summary = mamba2_run.summary
    assert summary["status"] == "ok" and set(summary["models"]) == {"int8_qat"}
    assert "parameters (mamba2), 225 history variables" in mamba2_run.printed
    assert "tables" not in summary and "tables:" not in mamba2_run.printed
    assert len(summary["quant"]["sensitivity"]) == 2 + 2 * 1 + 1  # embeddings, projections of a block, heads
    metadata = read_metadata(summary["models"]["int8_qat"]["path"])
    assert (metadata.model, metadata.format, metadata.origin.recipe) == ("mamba2", "int8_qat", "mamba2")
    assert summary["models"]["int8_qat"]["int8_weight_share"] == 1
    report = (mamba2_run.folder / "report.html").read_text(encoding="utf-8")
    assert "kind: mamba2" in report and "blocks.0.in_projection" in report


def test_planned_is_what_was_counted(mamba2_run: Run) -> None:
    memory = mamba2_run.summary["memory"]
    assert memory["missing"] == [] and memory["checkpoints_recorded"] == memory["checkpoints_expected"] == 18
    records = [json.loads(line) for line in (mamba2_run.folder / "memory.jsonl").read_text().splitlines()]
    peaks = {stage: max(record["peak"] for record in records if record["stage"] == stage) for stage in ("train", "qat")}
    # The greatest of all stages is what the summary has; QAT, which takes more, has its own beside.
    assert peaks["qat"] == pytest.approx(mamba2_run.summary["qat"]["planned_peak_bytes"], rel=0.01)
    assert max(peaks.values()) == pytest.approx(memory["planned_peak_bytes"], rel=0.01)
    training = max(record["peak"] for record in records if record["phase"] == "AFTER_TRAINING" and record["stage"] == "train")
    assert max(record["peak"] for record in records if record["phase"] == "VALIDATION_END" and record["stage"] == "train") <= training


def test_its_files_forecast_bars_and_compare(mamba2_run: Run) -> None:
    prediction = predict(mamba2_run.folder, BARS, newest=True)
    (forecasts,) = prediction.batches()
    assert prediction.model.path.name == "int8_qat.onnx"
    assert forecasts.values.shape == (1, 10, 3) and bool((np.diff(forecasts.values) >= 0).all())
    rows = Comparison((FinishedRun.read(mamba2_run.folder),)).rows()
    assert [row["model"] for row in rows] == ["int8_qat"]


class Interrupted(Exception):
    pass


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """Bit for bit, dropout included: computing a block again draws the same masks."""

    def trainer(folder: Path, seed: int, stop_at: int | None = None) -> Trainer:
        def on_update(update: int) -> None:
            if update == stop_at:
                raise Interrupted

        model = small_mamba2(seed=seed)
        windows = RealWindows(model.inputs, 7)
        torch.manual_seed(5)
        return tiny_trainer(folder, model, train=windows, validation=windows, epochs=2, checkpoint_every=1, on_update=on_update)

    whole = trainer(tmp_path / "whole", 0)
    whole.fit()
    with pytest.raises(Interrupted):
        trainer(tmp_path / "parts", 0, stop_at=3).fit()
    resumed = trainer(tmp_path / "parts", 1)
    torch.manual_seed(99)
    resumed.fit(resume=True)
    mine, other = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in other)
