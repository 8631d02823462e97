"""A Mamba-2 through the export that a TFT goes through: every format passes the gate, and its products are few and of integers."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from tests.export.made import ORIGIN, Made
from tests.export.test_half import ON_CUDA
from tests.model.small import small_mamba2
from tests.quant.small import calibrated, part, small_batch
from tftq.export import prove as prover
from tftq.export.forecaster import prove_forecaster, run_file
from tftq.export.graph import build_forecaster
from tftq.model.mamba2 import Mamba2
from tftq.quant.sensitivity import measure_sensitivity
from tftq.quant.weights import with_rounded_weights
from tftq.serve.measure import Measurement
from tftq.spec.formats import Format
from tftq.spec.metadata import read_metadata

KEPT = ("heads", "future_embedding")
NAMES = ["fp32, several chunks", "int4, some kept", "fp16_int8"]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    folder = tmp_path_factory.mktemp("mamba2")
    models: dict[str, tuple[Format, Callable[[], Mamba2]]] = {
        "fp32, several chunks": ("fp32", lambda: small_mamba2(layers=1)),
        "int4, some kept": (
            "int4_ptq",
            lambda: calibrated(small_mamba2(static=False, layers=1, chunk=64), "fp32", weights="int4", keep_float=KEPT),
        ),
        "fp16_int8": ("fp16_int8", lambda: calibrated(small_mamba2(static=False, layers=1, chunk=64), "fp32")),
    }

    @cache
    def made(name: str) -> Made:
        kind, model_of = models[name]
        model = model_of().eval()
        path = folder / f"{name}.onnx"
        path.write_bytes(build_forecaster(model, kind, "points", ORIGIN))
        return Made(path, with_rounded_weights(model) if kind == "fp16_int8" else model, kind)

    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_file_passes_the_gate(make: Callable[[str], Made], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "measure", lambda path, threads: Measurement({"rss_bytes": 1.0}, {}))  # which starts a process
    made = make(name)
    kept = made.model.kept_float
    proof = prove_forecaster(made.path, made.model, small_batch(made.model.inputs, 32), made.kind, kept=kept)
    assert read_metadata(made.path).model == "mamba2"
    if made.kind == "int4_ptq":
        assert kept == ("future_embedding.linear", "heads.linear")
        assert sum(proof.census.integer_products.values()) == 3 and proof.census.float_weight_products == 0
        assert proof.census.integer_share_outside_lstm == 1


def test_a_window_answers_the_same_in_any_company(make: Callable[[str], Made]) -> None:
    made = make("fp32, several chunks")
    batch = small_batch(made.model.inputs, 32)
    together = run_file(made.path, batch)
    alone = [run_file(made.path, part(batch, slice(i, i + 1))) for i in (0, 7, 31)]
    np.testing.assert_allclose(np.concatenate(alone), together[[0, 7, 31]], atol=1e-5 * float(np.ptp(together)))


def test_the_scan_is_few_products(make: Callable[[str], Made]) -> None:
    """Of one chunk two, of several three more; beside the two projections of the block, and the embeddings and heads."""
    products = {name: sum(node.op_type in ("MatMul", "Gemm") for node in make(name).nodes) for name in NAMES}
    assert products == {"fp32, several chunks": 3 + 2 + 5 + 1, "int4, some kept": 2 + 2 + 2 + 1, "fp16_int8": 2 + 2 + 2 + 1}
    assert not [node for name in NAMES for node in make(name).nodes if node.op_type in ("Loop", "Scan", "Conv")]


def test_the_cuda_provider_has_every_operator(make: Callable[[str], Made]) -> None:
    nodes = [*make("fp16_int8").nodes, *make("fp32, several chunks").nodes]
    assert {node.op_type for node in nodes} - {"Asinh"} <= ON_CUDA
    assert {node.domain for node in nodes} == {""}


def test_each_layer_has_its_sensitivity() -> None:
    model = calibrated(small_mamba2(), "fp32")
    batch = small_batch(model.inputs, 16)

    def loss() -> float:
        with torch.no_grad():
            return float((model(*batch.inputs)[..., 1] - batch.target).abs().mean())

    found = measure_sensitivity(model, [batch], loss, windows=16, every_layer=True, budget=None)
    names = {f"{part}_embedding.linear" for part in ("history", "future", "static")} | {"heads.linear"}
    assert {layer.layer for layer in found.layers} == names | {f"blocks.{i}.{part}_projection" for i in (0, 1) for part in ("in", "out")}
    assert all(layer.weight_snr_db is not None and layer.weight_snr_db > 30 for layer in found.layers)
