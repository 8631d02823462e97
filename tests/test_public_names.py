"""The names that `import tftq` offers: imported when they are used, and each only with what it needs."""

import subprocess
import sys

import pytest

import tftq
from tftq.errors import MissingExtraError
from tftq.kinds import run
from tftq.serve.stream import Stream


def test_every_name_is_there() -> None:
    assert all(getattr(tftq, name) is not None for name in tftq.__all__ if name != "__version__")
    assert tftq.Stream is Stream and tftq.run_recipe is run and set(dir(tftq)) == set(tftq.__all__)
    assert "__version__" in tftq.__all__ and not isinstance(tftq.__version__, int)
    with pytest.raises(AttributeError, match="module 'tftq' has no attribute 'strem'"):
        tftq.strem  # noqa: B018


@pytest.mark.parametrize("program", ["import tftq", "from tftq import Stream", "from tftq import read_metadata"])
def test_a_name_imports_only_what_it_needs(program: str) -> None:
    code = f"import sys\n{program}\nprint({{'torch', 'pydantic', 'pyarrow', 'rich', 'onnx', 'pynvml', 'psutil'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_name_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> object:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr("tftq.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"^tftq.Stream needs onnxruntime, which is not installed: pip install 'tftq\[serve\]'$"):
        tftq.Stream  # noqa: B018
