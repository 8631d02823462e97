"""The ensemble's case of benchmarks/gpu/check.py without a GPU: rows with and without a measurement."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import ensemble
from benchmarks.gpu.check import failed
from benchmarks.gpu.ensemble import BUDGET_BYTES, ensemble_rows
from tests.export.stub import write_stub
from tftq.errors import ProviderError
from tftq.serve.measure import Measurement

CPU = torch.device("cpu")
MB = 1_000_000


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecaster in every format and an agent in one, each a stub."""

    def write(sizes: str, folder: Path, *, gpu: bool) -> dict[str, Path]:
        assert sizes == "small" and gpu
        folders = {"tft": folder / "tft", "dqn": folder / "dqn"}
        for path in folders.values():
            path.mkdir()
            write_stub(path / "fp32.onnx")
        for kind in ensemble.FORMATS:
            write_stub(folders["tft"] / f"{kind}.onnx")
        return folders

    monkeypatch.setattr(ensemble, "write_members", write)
    monkeypatch.setattr(ensemble, "gpu_uuid", lambda device: "GPU-1")


def measuring(monkeypatch: pytest.MonkeyPatch, **cost: Any) -> list[list[str]]:
    """Let a measurement come to this; returns the files that were measured, as they are."""
    asked = []

    def found(*paths: Path, threads: int, gpu: str) -> Measurement:
        assert gpu == "GPU-1"
        asked.append([f"{path.parent.name}/{path.name}" for path in paths])
        return Measurement({"latency_ms": 2.5, "device_bytes_are": "of this process", **cost}, {"CUDAExecutionProvider": {"Add": 3}})

    monkeypatch.setattr(ensemble, "measure", found)
    return asked


@pytest.mark.parametrize(("device", "passed"), [(BUDGET_BYTES - 300 * MB, True), (BUDGET_BYTES - 300 * MB + 1, False)])
def test_what_all_occupy_with_the_context_is_held_against_the_budget(device: int, passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measuring(monkeypatch, device_bytes=device, context_bytes=300 * MB)
    rows = ensemble_rows("small", CPU)
    assert asked == [["tft/fp16.onnx", "dqn/fp32.onnx"], ["tft/fp16_int8.onnx", "dqn/fp32.onnx"]]
    assert [row["case"] for row in rows] == ["ensemble_fp16", "ensemble_fp16_int8"]
    assert [row["together_bytes"] for row in rows] == 2 * [device + 300 * MB] and [failed(row) for row in rows] == 2 * [not passed]
    assert rows[0]["members"] == 2 and rows[0]["file_bytes"] > 0 and rows[0]["computed_by"] == "all 3 on CUDA"


def test_what_the_driver_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, device_bytes=None, context_bytes=None)
    rows = ensemble_rows("small", CPU)
    assert all(row["device_bytes"] is None and "passed" not in row and not failed(row) for row in rows)


def test_a_runtime_without_a_gpu_is_the_reason_for_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*paths: Path, **_: Any) -> Measurement:
        raise ProviderError("built without its CUDA provider")

    monkeypatch.setattr(ensemble, "measure", none)
    assert [row["skipped"] for row in ensemble_rows("small", CPU)] == 2 * ["built without its CUDA provider"]
