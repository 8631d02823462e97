"""Every module of the data package can be imported where nothing that trains is installed."""

import pkgutil
import subprocess
import sys

import tftq.data
from tests.runs import ROOT

TRAINING = ("torch", "onnx", "onnxscript", "pynvml")


def test_no_module_of_data_imports_what_trains() -> None:
    modules = sorted(module.name for module in pkgutil.walk_packages(tftq.data.__path__, "tftq.data."))
    assert {"tftq.data.windows", "tftq.data.scaling", "tftq.data.features.table"} <= {*modules}
    code = f"import sys, {', '.join(modules)}; print([name for name in {TRAINING} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
