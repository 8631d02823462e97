"""From a forecaster to a file with a name, or to none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.made import ORIGIN, Make
from tests.export.stub import OFFSETS, Stub, stub_batch, write_stub
from tests.quant.small import SmallWindows, calibrated, small_batch, small_table
from tftq.errors import GateError
from tftq.evaluate.exported import evaluate
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import metrics_for, validate
from tftq.export import forecaster as module
from tftq.export.forecaster import Exported, export_model, prove_forecaster
from tftq.export.prove import Proof
from tftq.io import sha256
from tftq.model.batch import Batch
from tftq.quant.quantizers import quantizers
from tftq.serve.proof import proven_bytes
from tftq.spec.formats import Format
from tftq.spec.metadata import read_metadata

pytestmark = pytest.mark.xdist_group("exports")

CPU = Precision("fp32", torch.device("cpu"))


def exported(folder: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> Exported:
    """As `export_model` of a stub, with the bytes of a file in place of those it would build."""
    monkeypatch.setattr(module, "build_forecaster", lambda *_, **__: source.read_bytes())
    windows = SmallWindows(stub_batch(40))
    return export_model(Stub(), "fp32", folder, windows, None, batch_size=16, origin=ORIGIN)  # type: ignore[arg-type]


def test_an_export_leaves_a_file_and_what_was_proven_of_it(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("small int8")
    windows = SmallWindows(small_batch(made.model.inputs, 40, seed=9))
    seen: list[object] = []

    def build(model: torch.nn.Module, *described: object) -> bytes:
        seen.extend(described)
        return made.path.read_bytes()

    monkeypatch.setattr(module, "build_forecaster", build)
    test = SmallWindows(small_batch(made.model.inputs, 10, seed=10))
    result = export_model(
        made.model,
        "int8_ptq",
        tmp_path / "new",
        windows,  # type: ignore[arg-type]
        test,  # type: ignore[arg-type]
        batch_size=16,
        origin=ORIGIN,
    )
    assert seen == ["int8_ptq", "points", ORIGIN]
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["int8_ptq.export.json", "int8_ptq.onnx"]
    assert result.path.read_bytes() == made.path.read_bytes()

    proof = json.loads((tmp_path / "new" / "int8_ptq.export.json").read_text())
    assert all(check["passed"] for check in proof["checks"]) and proof["census"]["integer_products"]["QGemm"] > 20
    summary = result.summary()
    assert proven_bytes(tmp_path / "new" / "int8_ptq.export.json", [sha256(result.path)]) == summary["rss_bytes"]
    assert json.loads(json.dumps(summary)) == summary
    assert summary["file_bytes"] == made.path.stat().st_size
    assert summary["int8_weight_share"] == proof["census"]["int8_weight_share"] > 0.98
    assert summary["rss_bytes"] == proof["cost"]["rss_bytes"] and isinstance(summary["rss_bytes"], int)
    assert summary["max_abs_diff"] == proof["max_abs_diff"]
    for found, measured in ((summary, windows), (summary["test"], test)):
        in_torch = validate(made.model, measured, 16, CPU)
        assert found["loss"] == pytest.approx(in_torch.loss, rel=1e-3)  # type: ignore[index]
        risks = {str(quantile): pytest.approx(risk, rel=1e-3) for quantile, risk in in_torch.q_risk.items()}
        assert found["q_risk"] == risks  # type: ignore[index]


@pytest.mark.parametrize("kind", ["fp16", "fp16_int8"])
def test_what_is_for_a_gpu_is_built_in_half(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, kind: Format) -> None:
    made = make("small fp16" if kind == "fp16" else "fp16_int8")
    model = made.model if kind == "fp16" else calibrated(small_table(static=False, lstm_layers=1), "int8")
    formats, held = [], []

    def build(model: torch.nn.Module, *described: object) -> bytes:
        formats.append(described[0])
        return made.path.read_bytes()

    def proves(part: Path, model: torch.nn.Module, *others: Any, **options: Any) -> Proof:
        held.append(model)
        return prove_forecaster(part, model, *others, **options)

    monkeypatch.setattr(module, "build_forecaster", build)
    monkeypatch.setattr(module, "prove_forecaster", proves)
    windows = SmallWindows(small_batch(made.model.inputs, 40))
    result = export_model(model, kind, tmp_path, windows, None, batch_size=16, origin=ORIGIN)  # type: ignore[arg-type]
    summary = result.summary()
    assert result.test is None and "test" not in summary
    assert formats == [kind] and result.path.name == f"{kind}.onnx"
    assert read_metadata(result.path).horizon == 4
    assert summary["gpu"] == {"skipped": "the run was on the CPU"} and list(summary["nodes"]) == ["CPUExecutionProvider"]  # type: ignore[call-overload]
    assert (summary["int8_weight_share"] == 1) == (kind == "fp16_int8")
    assert not list(quantizers(held[0])), "nothing but weights is rounded in the model that it is held against"


@pytest.mark.parametrize(("count", "chosen"), [(1, [0]), (3, [0, 1, 2]), (63, [0, 2, 4, 6]), (3200, [0, 103, 206, 310])])
def test_the_gate_gets_windows_of_the_whole_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, chosen: list[int]) -> None:
    windows = stub_batch(count)
    windows.history[:, 0, 0] = torch.arange(count)
    got: list[float] = []

    def refuse(part: Path, model: torch.nn.Module, batch: Batch, format: str, **options: object) -> None:
        got.extend(batch.history[:, 0, 0].tolist())
        raise GateError("seen enough")

    monkeypatch.setattr(module, "prove_forecaster", refuse)
    monkeypatch.setattr(module, "build_forecaster", lambda *_, **__: b"")
    with pytest.raises(GateError, match="seen enough"):
        export_model(Stub(), "fp32", tmp_path, SmallWindows(windows), None, batch_size=16, origin=ORIGIN)  # type: ignore[arg-type]
    assert got[:4] == chosen and got[-1] == count - 1 and len(got) == min(count, 32)


def test_a_model_that_does_not_pass_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = write_stub(tmp_path / "wrong.onnx", tuple(2 * offset for offset in OFFSETS))
    with pytest.raises(GateError, match=r"did not pass the gate and was not published"):
        exported(tmp_path / "exports", monkeypatch, wrong)
    assert list((tmp_path / "exports").iterdir()) == []


def test_a_measuring_process_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = write_stub(tmp_path / "right.onnx")
    monkeypatch.setattr("tftq.serve.measure.sys.executable", "/bin/false")
    with pytest.raises(GateError, match=r"failed with exit status 1"):
        exported(tmp_path / "exports", monkeypatch, right)
    assert list((tmp_path / "exports").iterdir()) == []


def test_quality_is_measured_on_every_window_in_batches(tmp_path: Path) -> None:
    """By hand: the target is the median of the first step; the outer quantiles are 1 and 2 away from it."""
    path = write_stub(tmp_path / "stub.onnx")
    found = evaluate(path, SmallWindows(stub_batch(21)), metrics_for(Stub()), batch_size=8)  # type: ignore[arg-type]
    assert (found.windows, found.coverage, found.crossing_rate) == (21, 1.0, 0.0)
    # Pinball 0.1 · 1 and 0.1 · 2 for each outer quantile, over scales 1 and 2; a third of the quantiles is exact.
    assert found.loss == pytest.approx((0.1 + 0.0 + 0.1) / 3, abs=1e-5)


def test_a_forecast_that_is_not_finite_is_an_error_that_names_its_windows(tmp_path: Path) -> None:
    path = write_stub(tmp_path / "stub.onnx")
    batch = stub_batch(21)
    batch.history[17] = torch.nan
    with pytest.raises(GateError, match=r"^stub\.onnx: a forecast of windows 16 to 20 is not finite"):
        evaluate(path, SmallWindows(batch), metrics_for(Stub()), batch_size=8)  # type: ignore[arg-type]
