"""What a model's file says of itself, read past its graph: however large the model, a few bytes are read and nothing is loaded."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tftq.errors import MetadataError

METADATA_KEY = "tftq"  # of what a file says of itself

# The encoding of protocol buffers: fields of a message, each a number and one of these kinds of value.
VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5
METADATA_PROPS, GRAPH = 14, 7  # fields of onnx.ModelProto
NAME, VALUE = 1, 2  # fields of onnx.StringStringEntryProto


def file_metadata(path: Path) -> dict[str, Any]:
    """What `tftq.export.graph.build_graph` noted in a file; nothing of one that another tool made.

    Args:
        path: an ONNX file.

    Raises:
        MetadataError: it is no ONNX file, or a damaged one.
    """
    found: dict[str, Any] = {}
    whole = False
    with path.open("rb") as file:
        try:
            for number, content in _fields(file, path.stat().st_size, wanted=METADATA_PROPS):
                whole |= number == GRAPH
                if number == METADATA_PROPS:
                    entry = dict(_fields(io.BytesIO(content), len(content)))
                    if entry[NAME].decode() == METADATA_KEY:
                        found = json.loads(entry[VALUE])
        except (ValueError, KeyError) as error:
            raise MetadataError(f"{path}: no ONNX file, or a damaged one ({error})") from error
    if not whole:
        raise MetadataError(f"{path}: no ONNX file: it holds no graph")
    return found


def _fields(file: BinaryIO, size: int, *, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The sized fields of a message, with their content where it is of the wanted one or none is named."""
    while file.tell() < size:
        key = _varint(file)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            _varint(file)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            file.seek(8 if kind == EIGHT_BYTES else 4, io.SEEK_CUR)
        elif kind == SIZED:
            length = _varint(file)
            if file.tell() + length > size:
                raise ValueError("it ends within a field")
            if wanted in (None, number):
                yield number, file.read(length)
            else:
                file.seek(length, io.SEEK_CUR)
                yield number, b""
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            raise ValueError("it ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
