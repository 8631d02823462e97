"""Entries of an ONNX file's metadata, read past its graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.serving import bars_model
from tftq.errors import MetadataError
from tftq.spec.metadata import METADATA_KEY
from tftq.spec.onnx_file import read_entry


def test_an_entry_is_the_one_that_the_whole_file_gives(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    (entry,) = onnx.load(tmp_path / "m.onnx").metadata_props
    assert entry.key == METADATA_KEY and read_entry(tmp_path / "m.onnx", METADATA_KEY) == entry.value.encode()


def test_a_file_of_another_tool_has_no_such_entry(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros(40_000, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [40_000]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph)
    model.metadata_props.add(key="author", value="somebody")
    onnx.save(model, tmp_path / "m.onnx")
    assert read_entry(tmp_path / "m.onnx", METADATA_KEY) is None


@pytest.mark.parametrize("content", [b"", b"name: recipe\n", b"\x08\x0a", b"\xff" * 40, b"PK\x03\x04 zip"])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(MetadataError, match=r"m\.onnx: no ONNX file"):
        read_entry(path, METADATA_KEY)


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    whole = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MetadataError, match=r"no ONNX file, or a damaged one \(it ends within a field\)"):
        read_entry(tmp_path / "m.onnx", METADATA_KEY)


def test_a_number_without_an_end_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\xff" * 2_000_000)
    with pytest.raises(MetadataError, match=r"no ONNX file, or a damaged one \(a number of more than 10 bytes\)"):
        read_entry(path, METADATA_KEY)
