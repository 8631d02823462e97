"""How benchmarks/gpu/check.py runs its cases and reports them; no GPU needed."""

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import common
from benchmarks.gpu import check
from benchmarks.gpu.agreement import Agreement

CPU = torch.device("cpu")


def rendered(rows: list[dict[str, Any]]) -> str:
    console = Console(width=200, record=True, file=StringIO())
    for table in check.tables(rows):
        console.print(table)
    return console.export_text()


def test_it_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 1
    assert "needs a CUDA device, and none answers" in capsys.readouterr().err


def test_memory_that_runs_out_becomes_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    def case(device: torch.device) -> list[check.Row]:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2 GiB.\n in {check.ROOT}/tftq")

    rows = check.run_case("train_fp32_batch32", case, CPU)
    assert rows == [{"case": "train_fp32_batch32", "error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. in ./tftq"}]
    assert "Traceback" in capsys.readouterr().err
    assert check.failed(rows[0])


def test_an_agreement_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: torch.device) -> float:
        raise RuntimeError("no kernel")

    agreements = (Agreement("first", 1.0, fails), Agreement("second", 1.0, lambda device: 2.0), Agreement("third", 1.0, lambda device: 1.0))
    monkeypatch.setattr(check, "AGREEMENTS", agreements)
    rows = check.agreement_rows(CPU)
    assert rows[0] == {"check": "first", "error": "RuntimeError: no kernel"}
    assert [check.failed(row) for row in rows] == [True, True, False]


def test_each_case_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def runs(code: str) -> None:
        monkeypatch.setattr(subprocess, "run", lambda command, **options: real([sys.executable, "-c", code], **options))

    runs("print('noise'); print('[{\"case\": \"agreement\"}]')")
    assert check.rows_of_process("agreement", 60) == [{"case": "agreement"}]
    runs("import sys; print('a\\nthe last line', file=sys.stderr); sys.exit(3)")
    assert check.rows_of_process("agreement", 60) == [{"case": "agreement", "error": "its process ended with exit status 3: the last line"}]
    runs("import os; os.abort()")
    assert "exit status -6: no message" in check.rows_of_process("agreement", 60)[0]["error"]
    runs("import time; time.sleep(60)")
    assert "not done within the 420 s" in check.rows_of_process("agreement", 0.3)[0]["error"]


def test_the_command_of_a_case_is_one_that_this_script_takes() -> None:
    """The real thing: a fresh process, which here says that it has no GPU, or does the case."""
    if torch.cuda.is_available():
        pytest.skip("a CUDA device answers; test_gpu.py does the cases")
    assert "exit status 1: gpu-check needs a CUDA device" in check.rows_of_process("onnx_fp32", 120)[0]["error"]


def test_all_cases_are_run_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(check, "rows_of_process", lambda name, timeout_s: [{"case": name}])
    monkeypatch.setattr(check, "write_result", lambda name, rows: common.write_result(name, rows, folder=tmp_path / "results"))
    monkeypatch.setattr(common, "machine", dict)
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert check.main([]) == 0
    written = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    names = [f"{stage}_batch{batch}" for stage in ("train_fp32", "train_fp16", "train_bf16", "qat_fp32") for batch in (32, 1)]
    runtime = [f"onnx_{kind}" for kind in ("fp32", "fp16", "fp16_int8", "fp16_int8_lstm_int8", "int8_ptq")]
    assert [row["case"] for row in written["rows"]] == [*names, "out_of_memory", "agreement", *runtime, "ensemble"]
    assert "an update from one window: not measured" in capsys.readouterr().out
    monkeypatch.setattr(check, "rows_of_process", lambda name, timeout_s: [{"case": name, "error": "no memory"}])
    assert check.main([]) == 1


def test_the_tables_show_figures_misses_and_errors() -> None:
    timed: dict[str, Any] = {"target_ms": 5.0, "first_attempt_ms": 57.0}
    rows: list[dict[str, Any]] = [
        {"case": "train_fp32_batch1", "step_ms": 7.25, **timed, "train_peak_bytes": 700 * 2**20, "left_by_validation_bytes": 512},
        {"case": "train_fp32_batch32", "error": "OutOfMemoryError: CUDA out of memory"},
        {"case": "agreement", "check": "folded equals paper", "measured": 2e-7, "allowed": 1e-4, "passed": True},
        {"case": "onnx_fp16", "format": "fp16", "file_bytes": 16 * 2**20, "skipped": "built without its CUDA provider"},
        {"case": "onnx_fp32", "nodes": {"CUDAExecutionProvider": {"Gemm": 30}}, "computed_by": "all 30 on CUDA", "passed": False},
    ]
    text = rendered(rows)
    assert re.search(r"step ms .*target ms .*train peak MiB .*left by validation bytes .*error", text)
    assert re.search(r"train_fp32_batch1 .*7\.25 .*5 .*700 .*512", text)
    assert re.search(r"train_fp32_batch32 .*OutOfMemoryError: CUDA out of memory", text)
    assert re.search(r"folded equals paper .*2e-07 .*0\.0001 .*True", text)
    assert "all 30 on CUDA" in text and "Gemm" not in text and check.failed(rows[-1])
    assert re.search(r"onnx_fp16 .*16 .*built without its CUDA provider", text)
    assert "7.2 ms (train_fp32_batch1); target under 5 ms: missed; the first attempt took 57 ms" in check.speed_line(rows)
    assert "reached" in check.speed_line([{"case": "a", "step_ms": 4.9, **timed}])


def test_a_result_names_its_machine_versions_and_commit(tmp_path: Path) -> None:
    path = common.write_result("one", [{"case": "a", "latency_ms": 1.5}], folder=tmp_path / "results")
    assert path == tmp_path / "results" / "one.json"
    assert [file.name for file in path.parent.iterdir()] == ["one.json"]
    found = json.loads(path.read_text())
    assert list(found) == ["machine", "versions", "commit", "rows"]
    assert found["rows"] == [{"case": "a", "latency_ms": 1.5}]
    assert found["machine"]["logical_cores"] >= 1 and found["machine"]["memory_gb"] > 0 and found["machine"]["cpu"]
    assert found["versions"]["torch"] == torch.__version__ or torch.__version__.startswith(found["versions"]["torch"])
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", found["commit"])
    assert str(check.ROOT) not in path.read_text()


def test_a_result_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        common.write_result("one", [{"loss": float("nan")}], folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("git", "expected"),
    [({"commit": "abc", "dirty": False}, "abc"), ({"commit": "abc", "dirty": True}, "abc-dirty"), ({"commit": None}, "unknown")],
)
def test_the_commit(git: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "environment", lambda device, seed: {"git": git})
    assert common.commit() == expected
