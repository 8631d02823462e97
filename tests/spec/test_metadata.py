"""What a file says of itself, read past its graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.serving import bars_model
from tftq.errors import MetadataError
from tftq.export.graph import read_metadata
from tftq.spec.metadata import file_metadata


def test_the_notes_are_those_that_the_whole_file_gives(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    assert file_metadata(tmp_path / "m.onnx") == read_metadata(tmp_path / "m.onnx")


def test_a_file_of_another_tool_says_nothing(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros(40_000, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [40_000]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph)
    model.metadata_props.add(key="author", value="somebody")
    onnx.save(model, tmp_path / "m.onnx")
    assert file_metadata(tmp_path / "m.onnx") == {}


@pytest.mark.parametrize("content", [b"", b"name: recipe\n", b"\x08\x0a", b"\xff" * 40, b"PK\x03\x04 zip"])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(MetadataError, match=r"m\.onnx: no ONNX file"):
        file_metadata(path)


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    whole = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MetadataError, match=r"no ONNX file, or a damaged one \(it ends within a field\)"):
        file_metadata(tmp_path / "m.onnx")
