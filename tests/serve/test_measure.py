"""The measuring process: light, and one JSON document on standard output."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pynvml
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.export.made import Make
from tests.export.stub import stub_batch, write_stub
from tests.quant.small import small_batch
from tftq.errors import GateError, ProviderError
from tftq.serve import measure
from tftq.serve.measure import measured
from tftq.serve.session import feeds, may_saturate, open_session


def test_it_prints_one_json_document(tmp_path: Path) -> None:
    path = write_stub(tmp_path / "stub.onnx")
    command = [sys.executable, "-m", "tftq.serve.measure", str(path), "--batch", "3", "--threads", "1", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    cost = found["cost"]
    assert set(found) == {"cost", "nodes"} and set(cost) == {"load_ms", "latency_ms", "rss_bytes", "process_bytes"}
    assert min(cost.values()) > 0
    assert cost["rss_bytes"] < cost["process_bytes"]
    assert found["nodes"] == {"CPUExecutionProvider": {"Add": 1, "MatMul": 1, "Reshape": 2}}


def test_models_are_measured_beside_each_other(tmp_path: Path) -> None:
    paths = [write_stub(tmp_path / name) for name in ("one.onnx", "two.onnx")]
    found = measured(*paths, threads=1)
    assert found.nodes == {"CPUExecutionProvider": {"Add": 2, "MatMul": 2, "Reshape": 4}} and found.cost["latency_ms"] > 0
    with pytest.raises(GateError, match=r"one.onnx, none.onnx: measuring it in a fresh process failed with exit status 1"):
        measured(paths[0], tmp_path / "none.onnx", threads=1)


def test_a_gpu_that_is_not_there_is_the_reason_why_nothing_is_measured(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device answers; tests/gpu measures there")
    command = [sys.executable, "-m", "tftq.serve.measure", str(write_stub(tmp_path / "stub.onnx")), "--gpu", "1234"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "CUDA provider" in json.loads(done.stdout)["skipped"]


def test_nodes_of_a_loop_are_counted_once(tmp_path: Path) -> None:
    """A Scan over the batch whose body adds a constant to a window."""
    window = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("window", "moved")]
    body = helper.make_graph([helper.make_node("Add", ["window", "one"], ["moved"])], "body", window[:1], window[1:])
    node = helper.make_node("Scan", ["history"], ["forecast"], num_scan_inputs=1, body=body)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("history", "forecast")]
    one = numpy_helper.from_array(np.ones(3, np.float32), "one")
    model = helper.make_model(helper.make_graph([node], "loop", ends[:1], ends[1:], [one]), opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "loop.onnx")
    assert measure.nodes(tmp_path / "loop.onnx", threads=1) == {"CPUExecutionProvider": {"Add": 1, "Scan": 1}}


@pytest.mark.parametrize(
    ("own", "read_as", "context", "session"),
    [
        ([300, 300, 450], "of this process", 300, 150),  # asked once more, whether it is told at all
        ([None], "of all processes", 320, 130),
        (None, "not told by the driver: Unknown Error", None, None),
    ],
)
def test_what_a_session_occupies_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[int | None] | None, read_as: str, context: int | None, session: int | None
) -> None:
    """By hand: 1000 bytes are free at first, 680 once CUDA has started, 550 after the runs."""
    opened: list[bool] = []
    honest = open_session

    def on_the_cpu(path: Path, *, threads: int = 0, cuda: bool, spinning: bool = True) -> onnxruntime.InferenceSession:
        opened.append(cuda)
        return honest(path, threads=threads, spinning=spinning)

    def own_reader(uuid: str) -> Callable[[], int | None]:
        if own is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        told = iter(own)
        return lambda: next(told)

    free = iter([1000, 680, 550])
    monkeypatch.setattr(measure, "open_session", on_the_cpu)
    monkeypatch.setattr(measure, "own_bytes_reader", own_reader)
    monkeypatch.setattr(measure, "free_bytes_reader", lambda uuid: lambda: next(free))
    found = measure.measure(write_stub(tmp_path / "stub.onnx"), batch=1, threads=1, repeats=1, gpu="GPU-1")
    assert opened == [True, True]
    assert (found["context_bytes"], found["device_bytes"], found["device_bytes_are"]) == (context, session, read_as)


def test_a_package_without_cuda_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match="is built without its CUDA provider; install onnxruntime-gpu"):
        open_session(write_stub(tmp_path / "stub.onnx"), cuda=True)


def test_it_imports_no_torch(tmp_path: Path) -> None:
    """Or its resident memory would be torch's; what it does with a model included."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['measure', {str(write_stub(tmp_path / 'stub.onnx'))!r}, '--repeats', '1']\n"
        "runpy.run_module('tftq.serve.measure', run_name='__main__')\n"
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
        monkeypatch.setattr("tftq.serve.session.may_saturate", lambda saturates=saturates: saturates)
        session = open_session(made.path, threads=1)
        forecasts.append(session.run(None, feeds(session, inputs))[0])
        found = session.get_session_options().get_session_config_entry("session.x64quantprecision") if saturates else None
    assert found == "1"
    np.testing.assert_allclose(forecasts[1], forecasts[0], rtol=1e-5)


GROWTH = """
import sys
from pathlib import Path
import numpy as np, psutil
from tftq.serve.session import open_session
sessions = [open_session(Path(sys.argv[1]), threads=1, shared=sys.argv[2] == "shared") for _ in range(4)]
before, rows = psutil.Process().memory_info().rss, np.ones((5000, 100), np.float32)
answers = [session.run(None, {"x": rows})[0] for session in sessions]
print(psutil.Process().memory_info().rss - before, sum(float(answer.sum()) for answer in answers))
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
