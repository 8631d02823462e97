"""Entries of an ONNX file's metadata, read past its graph: however large the model, a few bytes are read and nothing is loaded."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tftq.errors import MetadataError

# The encoding of protocol buffers: fields of a message, each with a number and one of these types of value.
VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5
MOST_BYTES = 10  # of a varint
METADATA_PROPS, GRAPH = 14, 7  # fields of onnx.ModelProto
NAME, VALUE = 1, 2  # fields of onnx.StringStringEntryProto


def read_entry(path: Path, name: str) -> bytes | None:
    """Read one entry of a file's metadata.

    Args:
        path: an ONNX file.
        name: of the entry.

    Returns:
        Its value; None where the file has no such entry.

    Raises:
        MetadataError: no ONNX file, or a damaged one.
    """
    value: bytes | None = None
    whole = False
    with path.open("rb") as file:
        try:
            for number, content in _fields(file, path.stat().st_size, wanted=METADATA_PROPS):
                whole |= number == GRAPH
                if number == METADATA_PROPS:
                    entry = dict(_fields(io.BytesIO(content), len(content)))
                    if entry[NAME].decode() == name:
                        value = entry[VALUE]
        except (ValueError, KeyError) as error:
            raise MetadataError(f"{path}: no ONNX file, or a damaged one ({error})") from error
    if not whole:
        raise MetadataError(f"{path}: no ONNX file: it holds no graph")
    return value


def _fields(file: BinaryIO, size: int, *, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the sized fields of a message by number, with the content of the wanted one, or of all where none is named."""
    while file.tell() < size:
        key = _varint(file)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            _varint(file)
        elif wire_type in (EIGHT_BYTES, FOUR_BYTES):
            file.seek(8 if wire_type == EIGHT_BYTES else 4, io.SEEK_CUR)
        elif wire_type == SIZED:
            length = _varint(file)
            if file.tell() + length > size:
                raise ValueError("it ends within a field")
            if wanted in (None, number):
                yield number, file.read(length)
            else:
                file.seek(length, io.SEEK_CUR)
                yield number, b""
        else:
            raise ValueError(f"a field of type {wire_type}")


def _varint(file: BinaryIO) -> int:
    value = 0
    for place in range(MOST_BYTES):
        byte = file.read(1)
        if not byte:
            raise ValueError("it ends within a number")
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return value
    raise ValueError(f"a number of more than {MOST_BYTES} bytes")
