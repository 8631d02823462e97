"""Sessions: as they were asked for, without telemetry, and opened in one place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.export.made import Make
from tests.export.stub import stub_batch, write_stub
from tests.quant.small import small_batch
from tests.runs import ROOT
from tftq.errors import ProviderError
from tftq.serve import session as sessions
from tftq.serve.measure import measure
from tftq.serve.session import feeds, may_saturate, open_session, require_runtime

pytestmark = pytest.mark.xdist_group("exports")


def test_no_other_module_imports_the_runtime() -> None:
    """The one that does sets the environment first, which no other import may precede."""
    importing = re.compile(r"^\s*(import|from)\s+onnxruntime\b", re.MULTILINE)
    files = [path for folder in ("tftq", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if importing.search(path.read_text(encoding="utf-8"))}
    assert found == {"tftq/serve/session.py"}


TELEMETRY = """
import os, subprocess, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print("imported with", os.environ.get("ORT_DISABLE_TELEMETRY"))

sys.meta_path.insert(0, Watch())
import tftq.serve.measure
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import os; print('inherited', os.environ.get('ORT_DISABLE_TELEMETRY'))"], check=True)
"""


@pytest.mark.parametrize(("chosen", "value"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_before_the_import_and_in_child_processes_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, value: str
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if chosen is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", chosen)
    done = subprocess.run([sys.executable, "-c", TELEMETRY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"imported with {value}", f"inherited {value}"]


def test_the_measuring_process_inherits_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for Python prints what it finds in its environment as the measurement."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "{\\"cost\\": {\\"telemetry\\": $ORT_DISABLE_TELEMETRY}, \\"nodes\\": {}}"\n')
    python.chmod(0o755)
    monkeypatch.setattr("tftq.serve.measure.sys.executable", str(python))
    assert measure(tmp_path / "model.onnx", threads=1).cost == {"telemetry": int(os.environ["ORT_DISABLE_TELEMETRY"])}


def test_a_package_without_cuda_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match="is built without its CUDA provider; install onnxruntime-gpu"):
        open_session(write_stub(tmp_path / "stub.onnx"), cuda=True)


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
        monkeypatch.setattr("tftq.serve.session.may_saturate", lambda saturates=saturates: saturates)
        session = open_session(made.path, threads=1)
        forecasts.append(session.run(None, feeds(session, inputs))[0])
        found = session.get_session_options().get_session_config_entry("session.x64quantprecision") if saturates else None
    assert found == "1"
    np.testing.assert_allclose(forecasts[1], forecasts[0], rtol=1e-5)


GROWTH = """
import sys
from pathlib import Path
import numpy as np
from tftq.serve.resident import resident_bytes
from tftq.serve.session import open_session
sessions = [open_session(Path(sys.argv[1]), threads=1, shared=sys.argv[2] == "shared") for _ in range(4)]
before, rows = resident_bytes(), np.ones((5000, 100), np.float32)
answers = [session.run(None, {"x": rows})[0] for session in sessions]
print(resident_bytes() - before, sum(float(answer.sum()) for answer in answers))
"""


def test_sessions_that_share_an_arena_compute_in_the_same_memory(tmp_path: Path) -> None:
    """Four sessions that need 20 MB each, one after the other: 80 MB apart, 20 together, and the same answers."""
    weights = {"w": np.full((100, 1000), 0.01, np.float32), "v": np.ones((1000, 1), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size]) for name, size in (("x", 100), ("y", 1)))
    graph = helper.make_graph(nodes, "wide", [x], [y], [numpy_helper.from_array(value, name) for name, value in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "wide.onnx")
    found = {}
    for how in ("apart", "shared"):
        command = [sys.executable, "-c", GROWTH, str(tmp_path / "wide.onnx"), how]
        grown, answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found[how] = int(grown), float(answer)
    assert found["shared"][0] < 0.5 * found["apart"][0] and found["shared"][1] == found["apart"][1]


@pytest.mark.parametrize(("installed", "oldest", "fits"), [("1.31.1", "1.23", True), ("1.23.0", "1.23", True), ("1.9.0", "1.18", False)])
def test_a_runtime_too_old_for_a_file_is_named(monkeypatch: pytest.MonkeyPatch, installed: str, oldest: str, fits: bool) -> None:
    monkeypatch.setattr(sessions.onnxruntime, "__version__", installed)
    if fits:
        require_runtime(Path("m.onnx"), oldest)
        return
    with pytest.raises(ProviderError, match=r"^m\.onnx: found onnxruntime 1\.9\.0; allowed: 1\.18 or later; pip install --upgrade"):
        require_runtime(Path("m.onnx"), oldest)
