"""Every property of the gate, made to fail once by a forecaster; and the real exports, which pass."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.export.made import Make
from tests.export.stub import OFFSETS, Stub, stub_batch, write_stub
from tests.model.small import small_model
from tests.quant.small import small_batch
from tftq.errors import GateError, ProviderError
from tftq.export import forecaster
from tftq.export import prove as prover
from tftq.export.census import Census
from tftq.export.forecaster import prove_forecaster
from tftq.export.prove import Proof, measure_on_gpu
from tftq.io import sha256
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.serve.measure import Measurement, measure
from tftq.serve.proof import proven_bytes
from tftq.spec.formats import Format

pytestmark = pytest.mark.xdist_group("exports")

WRITTEN = "distance from torch, as written"
OPTIMISED = "distance from torch, as optimised"
BATCHES = "distance of batches of 1, 2 and 7 from all at once"
NEAREST, FARTHEST = ", nearest window", ", farthest window"  # of the same distances, in INT8
FINITE = "values that are not finite"
ORDERED = "quantiles out of order"
FLOAT_LEFT = "products of float weights left"
SHARE = "INT8 and INT4 share of the weights outside the LSTM"
LARGE = "large int8, lstm fp32"


def failures(error: pytest.ExceptionInfo[GateError]) -> set[str]:
    """The names of the lines that say FAILED."""
    found = re.findall(r"^  FAILED  (.*?)  +\S+  \(allowed ", str(error.value), re.MULTILINE)
    assert "did not pass the gate and was not published" in str(error.value) and found
    return set(found)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without measuring the cost, which starts a process."""
    monkeypatch.setattr(prover, "measure", lambda path, threads: Measurement({"rss_bytes": 1.0}, {"CPUExecutionProvider": {"Add": 1}}))


@pytest.mark.parametrize("integer", [False, True])
def test_what_is_right_passes_with_a_proof(tmp_path: Path, integer: bool) -> None:
    path = write_stub(tmp_path / "right.onnx", integer=integer)
    proof = prove_forecaster(path, Stub(), stub_batch(), "int8_ptq" if integer else "fp32")
    distances = [name + part for name in (WRITTEN, OPTIMISED, BATCHES) for part in ((NEAREST, FARTHEST) if integer else ("",))]
    assert [check.name for check in proof.checks] == distances + [FINITE, ORDERED] + integer * [FLOAT_LEFT, SHARE]
    assert all(check.passed for check in proof.checks) and proof.max_abs_diff < 1e-5
    assert proof.nodes["CPUExecutionProvider"]["MatMulIntegerToFloat" if integer else "MatMul"] == 1 and proof.gpu is None
    assert set(proof.cost) == {"load_ms", "latency_ms", "rss_bytes", "process_bytes"} and min(proof.cost.values()) > 0
    assert list(tmp_path.iterdir()) == [path]
    assert proof.census.float_weight_products == (0 if integer else 1)


def test_a_proof_counts_for_the_models_that_it_is_of(tmp_path: Path) -> None:
    proof, model = tmp_path / "a.export.json", tmp_path / "a.onnx"
    model.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of abc, FIPS 180-2
    census = Census({}, [], {}, 0, 0, {}, 0.0, 0.0, 0.0)
    Proof([], 0.0, census, {"rss_bytes": 5.0}, {}).write(proof, [model])
    assert proven_bytes(proof, [known]) == 5 and proven_bytes(proof, [known, known]) is None
    model.write_bytes(b"abd")
    assert proven_bytes(proof, [sha256(model)]) is None
    for size in ("null", "Infinity", "0", "-5", "{}"):
        proof.write_text(f'{{"cost": {{"rss_bytes": {size}}}, "sha256": ["{known}"]}}')
        assert proven_bytes(proof, [known]) is None
    for text in ("", "[]", "{}", '{"cost": {"rss_bytes": 5}}'):
        proof.write_text(text)
        assert proven_bytes(proof, [known]) is None


@pytest.mark.usefixtures("free")
def test_the_largest_difference_is_in_the_targets_unit(tmp_path: Path) -> None:
    offsets = (*OFFSETS[:-1], OFFSETS[-1] + 1e-3)
    proof = prove_forecaster(write_stub(tmp_path / "off.onnx", offsets), Stub(), stub_batch(), "fp32")
    assert proof.max_abs_diff == pytest.approx(1e-3, abs=1e-5)


@pytest.mark.usefixtures("free")
def test_a_file_of_another_model_fails(tmp_path: Path) -> None:
    path = write_stub(tmp_path / "other.onnx", (*OFFSETS[:-1], OFFSETS[-1] + 1))
    with pytest.raises(GateError, match=r"^other\.onnx \(fp32\)") as error:
        prove_forecaster(path, Stub(), stub_batch(), "fp32")
    assert failures(error) == {WRITTEN, OPTIMISED}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    ("kind", "steps", "moved", "failed"),
    [
        ("int8_ptq", 0.9, 1, set()),
        ("int8_ptq", 1.1, 1, {OPTIMISED + FARTHEST}),
        ("int8_ptq", 0.9, 19, set()),
        ("int8_qat", 0.9, 20, {OPTIMISED + NEAREST, BATCHES + NEAREST}),
        ("fp32", 0.5, 1, {OPTIMISED}),
        ("fp16", 4.0, 1, set()),
        ("fp16", 6.0, 1, {OPTIMISED}),
        ("fp16_int8", 4.0, 1, set()),
        ("fp16_int8", 6.0, 1, {OPTIMISED}),
    ],
)
def test_only_integers_may_be_a_step_off_and_some_window_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format, steps: float, moved: int, failed: set[str]
) -> None:
    """As if the runtime's fusion had rounded some of 20 windows otherwise, the last ones."""
    path = write_stub(tmp_path / "model.onnx", integer="int8" in kind)
    batch = stub_batch()
    spread = np.ptp(Stub()(*batch.inputs).numpy())
    honest = forecaster.run_file

    def fused(path: Path, batch: Batch, *, optimise: bool = True) -> np.ndarray:
        forecast = honest(path, batch, optimise=optimise)
        if optimise and len(forecast) == 20:
            forecast[20 - moved :] += steps * spread / 255
        return forecast

    monkeypatch.setattr(forecaster, "run_file", fused)
    if not failed:
        assert all(check.passed for check in prove_forecaster(path, Stub(), batch, kind).checks)
        return
    with pytest.raises(GateError) as error:
        prove_forecaster(path, Stub(), batch, kind)
    assert failures(error) == failed


@pytest.mark.usefixtures("free")
def test_a_forecast_that_depends_on_batch_mates_fails(tmp_path: Path) -> None:
    path = write_stub(tmp_path / "mates.onnx", batch_share=0.1)
    with pytest.raises(GateError) as error:
        prove_forecaster(path, Stub(batch_share=0.1), stub_batch(), "fp32")
    assert failures(error) == {BATCHES}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_batches_of_every_size_are_run_however_few_the_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """None is empty: the runtime aborts the process on an empty batch of a real model."""
    sizes = []
    honest = forecaster.run_file

    def counted(path: Path, batch: Batch, *, optimise: bool = True) -> np.ndarray:
        sizes.append(len(batch.history))
        return honest(path, batch, optimise=optimise)

    monkeypatch.setattr(forecaster, "run_file", counted)
    prove_forecaster(write_stub(tmp_path / "few.onnx"), Stub(), stub_batch(count), "fp32")
    assert sizes == [count, count, 1, 2, 7]


@pytest.mark.usefixtures("free")
def test_quantiles_that_cross_fail(tmp_path: Path) -> None:
    offsets = (0.0, 0.0, -1e-3, 0.0, 1.0, 2.0)
    with pytest.raises(GateError, match=rf"{ORDERED} +20  \(allowed == 0\)") as error:  # one of two steps of 20 windows
        prove_forecaster(write_stub(tmp_path / "crossing.onnx", offsets), Stub(offsets), stub_batch(), "fp32")
    assert failures(error) == {ORDERED}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_forecasts_that_are_not_finite_fail(tmp_path: Path, bad: float, integer: bool) -> None:
    path = write_stub(tmp_path / "broken.onnx", (*OFFSETS[:4], bad, bad), integer=integer)
    with pytest.raises(GateError, match=rf"{FINITE} +40  \(allowed == 0\)") as error:
        prove_forecaster(path, Stub(), stub_batch(), "int8_ptq" if integer else "fp32")
    parts = (NEAREST, FARTHEST) if integer else ("",)
    assert failures(error) == {FINITE} | {name + part for name in (WRITTEN, OPTIMISED, BATCHES) for part in parts}


@pytest.mark.usefixtures("free")
def test_a_float_product_in_an_int8_file_fails(tmp_path: Path) -> None:
    with pytest.raises(GateError) as error:
        prove_forecaster(write_stub(tmp_path / "float.onnx"), Stub(), stub_batch(), "int8_ptq")
    assert failures(error) == {FLOAT_LEFT, SHARE}


@pytest.mark.usefixtures("free")
def test_float_products_of_float_weights_fail_where_weights_should_be_integers(tmp_path: Path) -> None:
    with pytest.raises(GateError) as error:
        prove_forecaster(write_stub(tmp_path / "float.onnx"), Stub(), stub_batch(), "fp16_int8")
    assert failures(error) == {SHARE}


@pytest.mark.usefixtures("free")
def test_float_weights_too_small_for_a_product_still_count_for_the_share(tmp_path: Path) -> None:
    after = [helper.make_node("MatMul", ["whole", "unit"], ["forecast"])]
    path = write_stub(tmp_path / "share.onnx", integer=True, after=after, constants={"unit": np.eye(3, dtype=np.float32)})  # 9 beside 36
    with pytest.raises(GateError, match=rf"{SHARE} +0\.8  \(allowed >= 0\.98\)") as error:
        prove_forecaster(path, Stub(), stub_batch(), "int8_ptq")
    assert failures(error) == {SHARE}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("name", ["small fp32", "small fp16", "fp16_int8", "small int8", "folded int8", "paper int8", "small int4", LARGE])
def test_the_real_exports_pass(make: Make, name: str) -> None:
    made = make(name)
    batch = small_batch(made.model.inputs, 32)
    proof = prove_forecaster(made.path, made.model.train(), batch, made.kind)
    assert made.model.training, "its mode is its own again"
    made.model.eval()
    assert isinstance(proof, Proof) and all(check.passed for check in proof.checks)


@pytest.mark.usefixtures("free")
def test_layers_that_were_to_stay_in_float_are_counted_apart(make: Make) -> None:
    made = make("small int8, some kept")
    batch, kept = small_batch(made.model.inputs, 12), made.model.kept_float
    proof = prove_forecaster(made.path, made.model, batch, made.kind, kept=kept)
    names = {check.name: check.measured for check in proof.checks}
    assert names[f"{FLOAT_LEFT}, beside the layers kept"] == 0 and names[f"{SHARE}, beside the layers kept"] == 1
    assert names["layers kept in floating point"] == len(kept) == 7
    with pytest.raises(GateError) as error:  # as if nobody had asked for it
        prove_forecaster(made.path, made.model, batch, made.kind)
    assert failures(error) == {FLOAT_LEFT, SHARE, "LSTM weights stored in floating point"}
    with pytest.raises(GateError) as error:  # as if one more had been asked for, which is quantized
        prove_forecaster(made.path, made.model, batch, made.kind, kept=(*kept, "heads.linear"))
    assert failures(error) == {"layers kept in floating point"}


@pytest.mark.usefixtures("free")
def test_another_seeds_model_does_not_pass_for_this_one(make: Make) -> None:
    made = make("small fp32")
    other, _ = tabulate(small_model(seed=1))
    with pytest.raises(GateError) as error:
        prove_forecaster(made.path, other, small_batch(other.inputs, 12), "fp32")
    assert failures(error) == {WRITTEN, OPTIMISED}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("weight", ["position_wise.gate.weight", "history_selection.curves.integers", "encoder.hh_1.int8"])
def test_shuffled_weights_do_not_pass(make: Make, tmp_path: Path, weight: str) -> None:
    made = make("small int8")
    model = onnx.load(made.path)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == weight)
    shuffled = np.random.default_rng(0).permuted(numpy_helper.to_array(tensor), axis=-1)
    tensor.CopyFrom(numpy_helper.from_array(shuffled, weight))
    onnx.save(model, tmp_path / "shuffled.onnx")
    with pytest.raises(GateError) as error:
        prove_forecaster(tmp_path / "shuffled.onnx", made.model, small_batch(made.model.inputs, 12), "int8_ptq")
    assert (
        {WRITTEN + NEAREST, OPTIMISED + NEAREST}
        <= failures(error)
        <= {name + part for name in (WRITTEN, OPTIMISED) for part in (NEAREST, FARTHEST)}
    )


@pytest.mark.usefixtures("free")
def test_an_lstm_that_is_stored_in_floating_point_does_not_pass_for_an_integer_one(make: Make, tmp_path: Path) -> None:
    """The numbers are the same: each weight is what its integers and its scale make of it."""
    made = make("small int8")
    model = onnx.load(made.path)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    for lstm in [node for node in model.graph.node if node.op_type == "LSTM"]:
        for weight in lstm.input[1:3]:
            cast, reshaped = (makers[name] for name in makers[weight].input)
            values = constants[cast.input[0]] * constants[reshaped.input[0]][None, :, None]
            model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), weight))
            model.graph.node.remove(makers[weight])
    onnx.save(model, tmp_path / "float.onnx")
    with pytest.raises(GateError) as error:
        prove_forecaster(tmp_path / "float.onnx", made.model, small_batch(made.model.inputs, 12), "int8_ptq")
    assert failures(error) == {"LSTM weights stored in floating point"}


@pytest.mark.usefixtures("free")
def test_an_lstm_that_multiplies_floats_does_not_pass_for_one_of_integers(make: Make) -> None:
    made, dynamic = make("small int8"), make("small int8, lstm dynamic")
    with pytest.raises(GateError) as error:
        prove_forecaster(made.path, dynamic.model, small_batch(made.model.inputs, 12), "int8_ptq")
    assert "LSTM layers that multiply floats" in failures(error)


def test_a_measuring_process_that_fails_fails_the_gate(tmp_path: Path) -> None:
    (tmp_path / "bytes.onnx").write_bytes(b"no model")
    with pytest.raises(GateError, match=r"bytes\.onnx: measuring it .* failed with exit status 1: InvalidProtobuf: .*INVALID_PROTOBUF"):
        measure(tmp_path / "bytes.onnx", threads=1)


def test_what_is_for_a_gpu_is_measured_there_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("model.onnx")
    on_cpu = {kind: measure_on_gpu(path, kind, gpu=None) for kind in ("fp32", "fp16", "fp16_int8", "int8_ptq")}  # type: ignore[arg-type]
    skipped = {"skipped": "the run was on the CPU"}
    assert on_cpu == {"fp32": None, "fp16": skipped, "fp16_int8": skipped, "int8_ptq": None}

    def found(path: Path, *, threads: int, gpu: str) -> Measurement:
        return Measurement({"device_bytes": 5}, {"CUDAExecutionProvider": {"Gemm": 2}})

    monkeypatch.setattr(prover, "measure", found)
    assert measure_on_gpu(path, "int8_qat", gpu="GPU-1") is None
    whole = {"cost": {"device_bytes": 5}, "nodes": {"CUDAExecutionProvider": {"Gemm": 2}}}
    assert measure_on_gpu(path, "fp32", gpu="GPU-1") == measure_on_gpu(path, "fp16", gpu="GPU-1") == whole
    for error in (ProviderError("no cuDNN"), GateError("exit status 1")):
        monkeypatch.setattr(prover, "measure", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        assert measure_on_gpu(path, "fp16", gpu="GPU-1") == {"skipped": str(error)}
