"""The checks of benchmarks/gpu on a GPU, and on the CPU those that it can run; `pytest -rs` lists the reasons for skipping."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from benchmarks.gpu.agreement import AGREEMENTS, Agreement, exported_as_computed, exported_int8_as_computed, skipped_step_changes_nothing
from benchmarks.gpu.check import LARGE_BATCH, SHORT_BYTES
from benchmarks.gpu.reference import REFERENCE, SMALL, RandomWindows
from benchmarks.gpu.runtime import computed_on_the_gpu, runtime_row
from benchmarks.gpu.shortage import shortage_row
from benchmarks.gpu.training import FIRST_ATTEMPT_MS, TARGET_MS, UPDATES, training_row
from tftq.errors import PrecisionError, ProviderError
from tftq.evaluate.precision import Precision
from tftq.serve.session import CPU as CPU_PROVIDER
from tftq.serve.session import CUDA as CUDA_PROVIDER
from tftq.serve.session import open_session

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ON_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device answers"))
DEVICES = [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=ON_GPU)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("agreement", [pytest.param(agreement, id=agreement.measure.__name__) for agreement in AGREEMENTS])
def test_what_holds_on_every_device(agreement: Agreement, device: torch.device) -> None:
    if device == CPU and agreement.measure in (exported_as_computed, exported_int8_as_computed):
        pytest.skip("takes half a minute; tests/export exports from the CPU")
    if agreement.measure is skipped_step_changes_nothing:
        try:
            Precision("fp16", device).check()
        except PrecisionError as error:
            pytest.skip(str(error))
    row = agreement.row(device)
    assert row["passed"], row


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("stage", "precision", "batch"), [("train", "bf16", 2), ("qat", "fp32", 1)])
def test_a_small_training(stage: str, precision: str, batch: int, device: torch.device) -> None:
    row = training_row(SMALL, stage, precision, batch, device)
    assert (row["updates"], row["skipped_updates"]) == (UPDATES, 0)
    assert row["records_recorded"] == row["records_expected"] == 9
    assert 0 < row["step_ms"] < 10_000
    assert 0 < row["validate_peak_bytes"] < row["train_peak_bytes"]
    assert (row["train_reserved_bytes"] is None) == (device == CPU)
    assert (row.get("target_ms"), row.get("first_attempt_ms")) == ((TARGET_MS, FIRST_ATTEMPT_MS) if batch == 1 else (None, None))
    if device == CPU:
        assert row["left_by_validation_bytes"] == 0
        assert 0.8 < row["planned_train_peak_bytes"] / row["train_peak_bytes"] < 1.2


def test_a_batch_that_fits_is_not_halved() -> None:
    row = shortage_row(SMALL, 8, CPU, None)
    assert row["passed"], row
    assert (row["forward_batch"], row["times_out_of_memory"], row["left_by_failures_bytes"]) == (8, 0, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device answers")
def test_a_batch_that_does_not_fit_is_halved_until_it_does() -> None:
    row = shortage_row(REFERENCE, LARGE_BATCH, CUDA, SHORT_BYTES)
    assert row["passed"], row
    assert row["train_peak_bytes"] <= SHORT_BYTES


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device answers")
@pytest.mark.parametrize("kind", ["fp32", "fp16", "fp16_int8", "int8_ptq"])
def test_exports_in_the_cuda_provider(kind: str) -> None:
    row = runtime_row(SMALL, kind, "int8", CUDA)  # type: ignore[arg-type]
    if "skipped" in row:
        pytest.skip(row["skipped"])
    assert row["passed"], row


def identity() -> onnx.ModelProto:
    """The smallest model."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device answers")
def test_a_cuda_provider_that_does_not_work_is_not_believed(tmp_path: Path) -> None:
    onnx.save(identity(), tmp_path / "model.onnx")
    with pytest.raises(ProviderError, match="CUDA provider"):
        open_session(tmp_path / "model.onnx", cuda=True)


@pytest.mark.parametrize(
    ("nodes", "passes"),
    [
        ({CUDA_PROVIDER: {"Gemm": 30}}, True),
        ({CUDA_PROVIDER: {"Gemm": 30, "Shape": 1}, CPU_PROVIDER: {"Concat": 3, "Mul": 2}}, True),
        ({CUDA_PROVIDER: {"Gemm": 30}, CPU_PROVIDER: {"Asinh": 1}}, False),
        ({CUDA_PROVIDER: {"Gemm": 30}, CPU_PROVIDER: {"Mul": 20}}, False),
        ({CUDA_PROVIDER: {"Gemm": 30, "MemcpyToHost": 1}}, False),
        ({CPU_PROVIDER: {"Mul": 2}}, False),
    ],
)
def test_only_shapes_may_be_computed_elsewhere(nodes: dict[str, dict[str, int]], passes: bool) -> None:
    assert computed_on_the_gpu(nodes) == passes


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device answers")
def test_without_a_cuda_provider_the_reason_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.runtime.build_forecaster", lambda *_, **__: identity().SerializeToString())
    row = runtime_row(SMALL, "fp16_int8", "int8", CPU)
    assert set(row) == {"format", "lstm", "file_bytes", "skipped"} and "CUDA provider" in row["skipped"]


def test_an_agreement_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match="measured nan"):
        Agreement("no number", 1, lambda device: float("nan")).row(CPU)


def test_the_reference_is_the_model_of_the_first_attempt() -> None:
    recipe = REFERENCE.recipe("qat", "fp16", 32)
    assert (recipe.model.hidden, recipe.model.heads, recipe.model.lstm_layers, recipe.train.optimizer.name) == (256, 8, 2, "adamw")
    assert (recipe.train.precision, recipe.train.batch_size, recipe.train.epochs, recipe.quant.qat.epochs) == ("fp16", 32, 1, 1)
    shapes = {"history": (32, 60, 220), "future": (32, 10, 10), "static": (32, 5)}
    assert REFERENCE.inputs().shapes(32) == shapes
    windows = RandomWindows(REFERENCE, 40)
    batch = windows.batch(range(8, 40))
    assert {name: tuple(tensor.shape) for name, tensor in zip(shapes, batch.inputs, strict=True)} == shapes
    assert batch.target.shape == (32, 10)
    assert torch.equal(batch.history[1, :-1], batch.history[0, 1:]), "a window begins a row after the one before"
    assert torch.equal(batch.future[0], batch.history[10, -10:, -10:]), "the future follows the history"
