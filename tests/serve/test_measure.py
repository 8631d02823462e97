"""The measuring process: light, and one JSON document on standard output."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pynvml
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.export.stub import write_stub
from tftq.errors import GateError
from tftq.serve import measure as measuring
from tftq.serve.measure import measure
from tftq.serve.session import InferenceSession, open_session


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
    found = measure(*paths, threads=1)
    assert found.nodes == {"CPUExecutionProvider": {"Add": 2, "MatMul": 2, "Reshape": 4}} and found.cost["latency_ms"] > 0
    with pytest.raises(GateError, match=r"one.onnx, none.onnx: measuring it in a fresh process failed with exit status 1"):
        measure(paths[0], tmp_path / "none.onnx", threads=1)


def test_a_gpu_that_is_not_there_is_the_reason_why_nothing_is_measured(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device answers; benchmarks/gpu measures there")
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
    assert measuring.count_nodes(tmp_path / "loop.onnx", threads=1) == {"CPUExecutionProvider": {"Add": 1, "Scan": 1}}


@pytest.mark.parametrize(
    ("own", "read_as", "context", "session"),
    [
        ([300, 300, 450], "of this process", 300, 150),  # asked once more, whether it is told at all
        ([None], "of all processes", 320, 130),
        (None, "not reported by the driver: Unknown Error", None, None),
    ],
)
def test_what_a_session_occupies_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[int | None] | None, read_as: str, context: int | None, session: int | None
) -> None:
    """By hand: 1000 bytes are free at first, 680 once CUDA has started, 550 after the runs."""
    opened: list[bool] = []
    honest = open_session

    def on_the_cpu(path: Path, *, threads: int = 0, cuda: bool, spinning: bool = True) -> InferenceSession:
        opened.append(cuda)
        return honest(path, threads=threads, spinning=spinning)

    def own_reader(uuid: str) -> Callable[[], int | None]:
        if own is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        told = iter(own)
        return lambda: next(told)

    free = iter([1000, 680, 550])
    monkeypatch.setattr(measuring, "open_session", on_the_cpu)
    monkeypatch.setattr("tftq.serve.nvml.own_bytes_reader", own_reader)
    monkeypatch.setattr("tftq.serve.nvml.free_bytes_reader", lambda uuid: lambda: next(free))
    found = measuring.measure_here(write_stub(tmp_path / "stub.onnx"), batch=1, threads=1, repeats=1, gpu="GPU-1")
    assert opened == [True, True]
    assert (found["context_bytes"], found["device_bytes"], found["device_bytes_are"]) == (context, session, read_as)


def test_it_imports_no_torch(tmp_path: Path) -> None:
    """Or its resident memory would be torch's; what it does with a model included."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['measure', {str(write_stub(tmp_path / 'stub.onnx'))!r}, '--repeats', '1']\n"
        "runpy.run_module('tftq.serve.measure', run_name='__main__')\n"
        "heavy = {'torch', 'onnx', 'pydantic', 'pyarrow', 'rich', 'pynvml', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'onnxruntime' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
