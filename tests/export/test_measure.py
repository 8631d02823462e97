"""The measuring process: light, and one JSON document on standard output."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.export.conftest import Make
from tests.export.stub import stub_batch, write_stub
from tests.quant.small import small_batch
from tftq.export import measure
from tftq.export.measure import feeds, may_saturate, open_session


def test_it_prints_one_json_document(tmp_path: Path) -> None:
    path = write_stub(tmp_path / "stub.onnx")
    command = [sys.executable, "-m", "tftq.export.measure", str(path), "--batch", "3", "--threads", "1", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert set(measured) == {"load_ms", "latency_ms", "rss_bytes", "process_bytes"}
    assert min(measured.values()) > 0
    assert measured["rss_bytes"] < measured["process_bytes"]


def test_it_imports_no_torch(tmp_path: Path) -> None:
    """Or its resident memory would be torch's; what it does with a model included."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['measure', {str(write_stub(tmp_path / 'stub.onnx'))!r}, '--repeats', '1']\n"
        "runpy.run_module('tftq.export.measure', run_name='__main__')\n"
        "heavy = {'torch', 'onnx', 'pydantic', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'onnxruntime' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_session_takes_the_inputs_in_its_own_order(tmp_path: Path) -> None:
    session = open_session(write_stub(tmp_path / "stub.onnx"), threads=1)
    batch = stub_batch(2)
    fed = feeds(session, batch.inputs)
    assert {name: array.shape for name, array in fed.items()} == {"history": (2, 3, 2), "future": (2, 2, 1)}
    assert all(array.dtype == np.float32 for array in fed.values())
    with pytest.raises(ValueError, match="shorter"):
        feeds(session, [batch.history])


@pytest.mark.parametrize(("optimise", "level"), [(True, "ORT_ENABLE_ALL"), (False, "ORT_DISABLE_ALL")])
def test_a_session_is_as_it_was_asked_for(tmp_path: Path, optimise: bool, level: str) -> None:
    options = open_session(write_stub(tmp_path / "stub.onnx"), threads=1, optimise=optimise).get_session_options()
    assert (options.graph_optimization_level.name, options.intra_op_num_threads) == (level, 1)


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "flags : fpu avx2 avx512f avx512_vnni", False),
        ("AMD64", "flags : fpu avx2 avx_vnni", False),
        ("x86_64", "flags : fpu avx2", True),
        ("AMD64", None, True),
        ("aarch64", "Features : asimd", False),
    ],
)
def test_a_cpu_without_vnni_may_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str | None, saturates: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(flags)
    assert may_saturate(tmp_path / "cpuinfo") == saturates


def test_where_it_may_saturate_the_runtime_multiplies_exactly(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It then rewrites the INT8 weights as UINT8, which must leave the forecasts as they are."""
    made = make("small int8")
    inputs = small_batch(made.model.inputs, 7).inputs
    forecasts = []
    for saturates in (False, True):
        monkeypatch.setattr(measure, "may_saturate", lambda saturates=saturates: saturates)
        session = open_session(made.path, threads=1)
        forecasts.append(session.run(None, feeds(session, inputs))[0])
        found = session.get_session_options().get_session_config_entry("session.x64quantprecision") if saturates else None
    assert found == "1"
    np.testing.assert_allclose(forecasts[1], forecasts[0], rtol=1e-5)
