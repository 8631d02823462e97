"""The main job as its user meets it: what it leaves, what it refuses, and how it goes on after an interruption."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import tftq.jobs.run
from tests.runs import ROOT, SMALL, Run
from tftq.cli import main
from tftq.data.files import iso
from tftq.data.load import load_datasets
from tftq.errors import PlanError, QuantizationError, RunFolderError
from tftq.jobs.training import TrainingJob
from tftq.model.batch import gather
from tftq.model.size import parameter_count
from tftq.quant.quantizers import quantizers
from tftq.quant.schedule import QatSchedule
from tftq.recipe.load import load_recipe
from tftq.serve.session import feeds, open_session
from tftq.spec.metadata import read_metadata
from tftq.spec.summary import Summary
from tftq.train.build import architecture_of, build_model
from tftq.train.checkpoint import load_checkpoint, load_model

pytestmark = pytest.mark.xdist_group("bars_run")

QAT = ROOT / "recipes" / "qat_int8.yaml"


def test_a_run_leaves_what_it_promises(bars_run: Run) -> None:
    names = {path.relative_to(bars_run.folder).as_posix() for path in bars_run.folder.rglob("*") if path.is_file()}
    assert names == {
        *(".lock", "recipe.yaml", "env.json", "metrics.jsonl", "memory.jsonl", "summary.json", "report.html"),
        *("checkpoints/last.pt", "checkpoints/best.pt", "qat/metrics.jsonl", "qat/checkpoints/last.pt", "qat/checkpoints/best.pt"),
        *(f"exports/{kind}.{end}" for kind in ("fp32", "int8_ptq", "int8_qat") for end in ("onnx", "export.json")),
    }


def test_the_summary_holds_what_scripts_rely_on(bars_run: Run) -> None:
    summary = bars_run.summary
    assert (summary["name"], summary["status"], summary["device"], summary["seed"]) == ("qat_int8", "ok", "cpu", 7)
    assert summary["updates"] == 2 * 22 and summary["samples_per_s"] > 0  # 696 windows in batches of 32, two epochs
    assert set(summary["val"]) >= {"loss", "q_risk", "baseline_q_risk", "coverage", "crossing_rate"}
    assert summary["val"]["baseline_q_risk"] == {"0.5": 1.0}  # no change: Σ|y| / Σ|y|
    assert set(summary["models"]) == {"fp32", "int8_ptq", "int8_qat"}
    for model in summary["models"].values():
        assert set(model) >= {"path", "file_bytes", "q_risk", "max_abs_diff", "rss_bytes", "latency_ms", "int8_weight_share"}
        assert Path(model["path"]).stat().st_size == model["file_bytes"]
    assert summary["qat"]["updates"] == 22 and summary["qat"]["best_epoch"] in (0, 1)


def test_a_file_says_until_when_it_was_trained(bars_run: Run) -> None:
    (trained,) = [note for note in bars_run.summary["notes"] if note.startswith("train: ")]
    for kind in ("fp32", "int8_qat"):
        until = read_metadata(bars_run.folder / "exports" / f"{kind}.onnx").origin.trained_until_ns
        assert isinstance(until, int) and trained.endswith(f"to {iso(until)}")


def test_every_phase_of_every_epoch_leaves_a_record(bars_run: Run) -> None:
    memory = bars_run.summary["memory"]
    assert memory["source"] == "counter" and memory["missing"] == []
    assert memory["checkpoints_recorded"] == memory["checkpoints_expected"] == 27  # nine, in two epochs and one of QAT
    records = [json.loads(line) for line in (bars_run.folder / "memory.jsonl").read_text().splitlines()]
    assert [record["phase"] for record in records[:9]] == [
        *("EPOCH_START", "TRAIN_BATCH_0", "AFTER_TRAINING", "BEFORE_VALIDATION", "VALIDATION_START", "VALIDATION_END"),
        *("AFTER_VALIDATION", "AFTER_CHECKPOINT", "EPOCH_END"),
    ]
    assert all(record["allocated"] > 0 and record["reserved"] is None and record["error"] is None for record in records)


def test_validation_needs_no_more_than_training(bars_run: Run) -> None:
    """And nothing leaks: live bytes after an epoch are those before it, once the optimizer has its state."""
    records = [json.loads(line) for line in (bars_run.folder / "memory.jsonl").read_text().splitlines()]
    train = [record for record in records if record["stage"] == "train"]
    peaks = {phase: max(r["peak"] for r in train if r["phase"] == phase) for phase in ("AFTER_TRAINING", "VALIDATION_END")}
    assert peaks["VALIDATION_END"] <= peaks["AFTER_TRAINING"]
    ends = [record["allocated"] for record in train if record["phase"] == "EPOCH_END"]
    assert ends[1] == ends[0]


def test_the_plan_is_what_was_measured(bars_run: Run) -> None:
    memory = bars_run.summary["memory"]
    records = [json.loads(line) for line in (bars_run.folder / "memory.jsonl").read_text().splitlines()]
    peaks = {stage: max(r["peak"] for r in records if r["stage"] == stage) for stage in ("train", "qat")}
    planned = {"train": memory["planned_peak_bytes"], "qat": bars_run.summary["qat"]["planned_peak_bytes"]}
    assert max(peaks.values()) == sum(memory["components"].values()) == memory["peak_bytes"]
    assert peaks == {stage: pytest.approx(size, rel=0.03) for stage, size in planned.items()}
    assert set(memory["components"]) == {"parameters", "gradients", "optimizer", "activations", "workspace", "left_over"}


def test_parameters_are_counted_before_training(bars_run: Run) -> None:
    """The printed count equals the closed form, which equals the model's own."""
    recipe = load_recipe(QAT, SMALL)
    data = load_datasets(recipe.data)
    count = parameter_count(data.train.inputs, architecture_of(recipe.model))
    assert count == sum(parameter.numel() for parameter in build_model(recipe.model, data).parameters())
    assert f"{count:,} parameters" in bars_run.printed
    assert bars_run.printed.index("parameters") < bars_run.printed.index("trained:")


class Stop(Exception):
    pass


@pytest.fixture
def stop_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Stop

    monkeypatch.setattr(tftq.jobs.run, "build_model", stop)


@pytest.mark.usefixtures("stop_before_training")
def test_a_plan_over_the_budget_is_refused_with_its_table(do_run: Callable[..., Run], tmp_path: Path) -> None:
    """Without a folder, and before any model is built."""
    with pytest.raises(PlanError, match=r"planned peak of train, .* is above memory.budget_mb 1(.|\n)*gradients(.|\n)*over by"):
        do_run("qat_int8.yaml", tmp_path / "run", *SMALL, "memory.budget_mb=1")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("stop_before_training")
@pytest.mark.parametrize("recipe", ["ptq_int8.yaml", "qat_int8.yaml"])
def test_a_pattern_that_matches_no_layer_is_refused_before_training(do_run: Callable[..., Run], tmp_path: Path, recipe: str) -> None:
    with pytest.raises(QuantizationError, match=r"^quant\.keep_float: 'atention' matches no layer .*did you mean attention"):
        do_run(recipe, tmp_path / "run", "model.hidden=16", "model.knots=8", "quant.keep_float=[atention]")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("stop_before_training")
def test_a_plan_over_the_budget_is_run_where_the_recipe_says_so(do_run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"peak of train, .* is above memory.budget_mb 1; memory.over_budget is run"), pytest.raises(Stop):
        do_run("qat_int8.yaml", tmp_path / "run", *SMALL, "memory.budget_mb=1", "memory.over_budget=run")


def test_raw_features_in_forecasts_out(bars_run: Run) -> None:
    """The exported file on raw features against the trained model of the checkpoint, and the price it implies."""
    recipe = load_recipe(QAT, SMALL)
    data = load_datasets(recipe.data)
    model = build_model(recipe.model, data)
    best = bars_run.folder / "checkpoints" / "best.pt"
    load_model(model, load_checkpoint(best), best)
    batch = gather(data.validation, [0, 100])
    with torch.no_grad():
        expected = model.eval()(*batch.inputs).numpy()
    session = open_session(bars_run.folder / "exports" / "fp32.onnx")
    forecast = session.run(None, feeds(session, batch.inputs))[0]
    np.testing.assert_allclose(forecast, expected, rtol=1e-4, atol=1e-8)

    closes = pq.read_table(ROOT / "test_data" / "ES_FUT_small.parquet")["close"].to_numpy()
    last = data.validation.last_close([0, 100])
    ahead = last[:, None] * np.exp(batch.target.double().numpy())  # what the target implies is what the bars say
    first = np.flatnonzero(np.isclose(closes[:-1], last[0]) & np.isclose(closes[1:], ahead[0, 0]))
    assert any(np.allclose(closes[at + 1 : at + 11], ahead[0]) for at in first)


def test_a_folder_that_is_not_empty_is_refused(do_run: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunFolderError, match="not empty"):
        do_run("qat_int8.yaml", tmp_path, *SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_interrupted_and_resumed_equals_uninterrupted(
    do_run: Callable[..., Run], bars_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the middle of QAT; the model of the last stage, in which all before it shows, forecasts the same to the last bit."""
    apply = QatSchedule.apply

    def interrupted(self: QatSchedule, model: torch.nn.Module, update: int) -> None:
        if update == 15:
            raise KeyboardInterrupt
        apply(self, model, update)

    changes = (*SMALL, "train.checkpoint_every=10", "export.formats=[int8_qat]")
    monkeypatch.setattr(QatSchedule, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do_run("qat_int8.yaml", tmp_path / "run", *changes)
    monkeypatch.setattr(QatSchedule, "apply", apply)
    resumed = do_run("qat_int8.yaml", tmp_path / "run", *changes, resume=True)
    assert resumed.summary["updates"] == bars_run.summary["updates"]
    ours, theirs = (open_session(made.folder / "exports" / "int8_qat.onnx") for made in (resumed, bars_run))
    batch = load_datasets(load_recipe(QAT, SMALL).data).validation.batch(range(20))
    assert np.array_equal(ours.run(None, feeds(ours, batch.inputs))[0], theirs.run(None, feeds(theirs, batch.inputs))[0])


def test_a_failed_run_says_so(do_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(tftq.jobs.run, "build_model", fail)
    with pytest.raises(OSError, match="disk full"):
        do_run("qat_int8.yaml", tmp_path / "run", *SMALL)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed: OSError: disk full"


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(QAT), "model.hiden=3"]) == 2
    assert "model.hidden" in capsys.readouterr().err  # the nearest known key
    assert main(["run", str(QAT), f"data.path={tmp_path / 'none.parquet'}", f"out={tmp_path / 'run'}"]) == 1
    assert "none.parquet" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as help_:
        main(["run", "--help"])
    assert help_.value.code == 0


def test_what_turns_out_otherwise_is_noted(bars_run: Run) -> None:
    recipe = load_recipe(QAT, ["train.optimizer.groups.encoder.*=1e-4", "quant.calibration_windows=9999"])
    notes = tftq.jobs.run._notes(recipe, 696)
    assert notes == [
        "calibration takes all 696 training windows; quant.calibration_windows asks for 9999",
        "train.optimizer.groups count while training in floating point; QAT trains everything at quant.qat.lr",
    ]
    assert tftq.jobs.run._notes(load_recipe(QAT, SMALL), 696) == []
    assert "tables:" in bars_run.printed and bars_run.summary["tables"]["above_tolerance"] == []


def test_cuda_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert main(["run", str(QAT), "device=cuda", f"out={tmp_path / 'run'}"]) == 2
    assert "device: cuda is asked for, but" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        error = KeyboardInterrupt()
        error.add_note("training would resume at epoch 2, update 22")
        raise error

    monkeypatch.setattr(tftq.jobs.run, "run", interrupted)
    assert main(["run", str(QAT), f"out={tmp_path / 'run'}"]) == 130
    assert "interrupted (training would resume at epoch 2, update 22): continue with --resume" in capsys.readouterr().err


def test_a_checkpoint_knows_its_data() -> None:
    """One value changed: what a checkpoint must match to be resumed is another."""
    windows = load_datasets(load_recipe(QAT, SMALL).data).train
    before = windows.fingerprint()
    assert before == load_datasets(load_recipe(QAT, SMALL).data).train.fingerprint()
    windows.rows[100, 3] += 1e-6
    assert windows.fingerprint() != before


def test_a_streaming_pair_lies_beside_the_model_in_one_piece(do_run: Callable[..., Run], tmp_path: Path) -> None:
    made = do_run(
        "structured_qat.yaml", tmp_path / "run", "quant=null", "export.formats=[stream, fp32]", "train.epochs=1", "model.hidden=8"
    )
    one, pair = made.summary["models"]["fp32"], made.summary["models"]["stream"]
    assert list(made.summary["models"]) == ["fp32", "stream"]
    files = [Path(pair[key]) for key in ("path", "partner")]
    assert [path.relative_to(made.folder).as_posix() for path in files] == ["exports/step.onnx", "exports/forecast.onnx"]
    assert pair["file_bytes"] == sum(path.stat().st_size for path in files)
    assert pair["q_risk"] == {level: pytest.approx(risk, rel=1e-5) for level, risk in one["q_risk"].items()}
    assert pair["max_abs_diff"] == pytest.approx(one["max_abs_diff"], abs=1e-5) and pair["latency_ms"] > 0
    assert "stream, of fp32: passed the gate" in made.printed
    report = (made.folder / "report.html").read_text(encoding="utf-8")
    assert "stream is two files" in report and "distance from the one-piece model, bar by bar" in report


def test_int8_weights_for_a_gpu_are_those_of_the_integer_model(
    do_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages alone: nothing is trained or built."""
    made: dict[str, torch.nn.Module] = {}

    @dataclass
    class Models(Summary):
        models: dict[str, Any]

    def record(model: torch.nn.Module, kind: str, *_: object, gpu: str | None, **__: object) -> SimpleNamespace:
        made[kind] = model
        assert gpu is None, "there is none on the CPU"
        return SimpleNamespace(file_bytes=0, summary=dict)

    monkeypatch.setattr(tftq.jobs.run, "export_model", record)
    monkeypatch.setattr(tftq.jobs.run, "_train", lambda *_: SimpleNamespace(batch_size=32))
    monkeypatch.setattr(tftq.jobs.run, "_summary", lambda *_, models, **__: Models(models))
    monkeypatch.setattr(TrainingJob, "memory_summary", lambda *_: {})
    for name in ("write_report", "exported_table"):
        monkeypatch.setattr(tftq.jobs.run, name, lambda *_: "")
    changes = ("device=cpu", "quant.method=ptq", "quant.qat=null", "quant.calibration_windows=32", "model.hidden=8")
    run = do_run("structured_qat.yaml", tmp_path / "run", *changes, "export.formats=[fp16_int8, fp16, int8_ptq]")
    assert list(run.summary["models"]) == ["fp16", "int8_ptq", "fp16_int8"]
    assert made["fp16_int8"] is made["int8_ptq"] and list(quantizers(made["fp16_int8"])) and not list(quantizers(made["fp16"]))


def test_four_bits_go_through_a_whole_run(do_run: Callable[..., Run], tmp_path: Path) -> None:
    """Planned, calibrated, trained, proven, told and reported under names of their own."""
    sizes = ("data.lookback=12", "data.horizon=4", "model.hidden=8", "model.knots=8", "train.batch_size=256")
    made = do_run("structured_int4.yaml", tmp_path / "run", *sizes, "train.epochs=1", "quant.qat.epochs=1", "quant.qat.ranges=learn")
    models = made.summary["models"]
    assert set(models) == {"fp32", "int4_ptq", "int4_qat"} and made.summary["qat"]["updates"] > 0
    for kind in ("int4_ptq", "int4_qat"):
        assert 0.2 < models[kind]["int4_weight_share"] == pytest.approx(1 - models[kind]["int8_weight_share"])
        assert read_metadata(made.folder / "exports" / f"{kind}.onnx").format == kind
    assert models["fp32"]["int4_weight_share"] == 0 and "weights in INT4" in made.printed
    assert "INT4 share of weights" in (made.folder / "report.html").read_text(encoding="utf-8")
