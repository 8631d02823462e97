"""A cache of rows in a file, mapped into memory: written completely or not at all, and used only while intact.

The file: arrays one after the other, their places and all else of a `Source` as JSON, the JSON's length, and the SHA-256 of all before it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from tftq.data.files import existing
from tftq.data.source import Keep, Source
from tftq.data.windows import Level, LogReturn, nothing_to_release
from tftq.errors import DataError
from tftq.spec.inputs import Column, Inputs

if TYPE_CHECKING:
    from tftq.recipe.schema import BarsRecipe, TableRecipe

TARGETS: dict[str, type[LogReturn] | type[Level]] = {"LogReturn": LogReturn, "Level": Level}
ELSEWHERE = {"path", "cache", "validation", "test"}  # options that no row, window or note of a source depends on
LENGTH, DIGEST = 8, hashlib.sha256().digest_size  # bytes
CHUNK = 2**20  # bytes read at a time
ALIGNMENT = 64  # bytes


class _Damaged(Exception):
    """The reason why a file cannot be used."""


def cached(recipe: BarsRecipe | TableRecipe, folder: Path, read: Callable[[Keep], Source]) -> Source:
    """Return the result of `read` for a recipe's data, from the cache of an earlier run if there is one.

    Runs that build the same file at once do not disturb each other: each writes its own, and the last one stays.

    Args:
        recipe: the recipe's `data` part.
        folder: the folder of the cache; created if missing.
        read: reads the data, and stores its rows through its argument.

    Returns:
        The source, its arrays mapped into memory and not to be written to.

    Raises:
        DataError: the folder is a file; or an error of `read`.
    """
    if folder.is_file():
        raise DataError(f"data.cache: {folder} is a file; give a folder")
    path = folder / f"{recipe.kind}-{_key(recipe)}.rows"
    rebuilt = ""
    try:
        return _noted(_opened(path), f"rows mapped from {path}, where an earlier run left them")
    except FileNotFoundError:
        pass
    except _Damaged as damage:
        rebuilt = f"; what was there was damaged: {damage}"
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x+b") as file:
            writer = _Writer(file)
            writer.finish(read(writer.keep))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return _noted(_opened(path), f"rows written to {path} and mapped from there{rebuilt}")


def _key(recipe: BarsRecipe | TableRecipe) -> str:
    """Hash everything that the rows depend on: the content of the file, the options that matter, and the code that reads them."""
    with existing(recipe.path).open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    code = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(source.read_bytes())
    parts = [content, recipe.model_dump(mode="json", exclude=ELSEWHERE), code.hexdigest(), np.__version__, pa.__version__]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class _Writer:
    """Writes a source block by block, its rows first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._written = 0
        self._places: dict[str, tuple[str, tuple[int, ...], int]] = {}  # type, shape and offset of each array

    def keep(self, count: int, width: int, blocks: Iterator[np.ndarray]) -> np.ndarray:
        """See `Keep`."""
        self._places["rows"] = ("float32", (count, width), 0)
        for block in blocks:
            self._write(block.data)
        self._file.flush()
        assert self._written == 4 * count * width
        return _arrays(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), self._places)["rows"]

    def finish(self, source: Source) -> None:
        """Write the source except its rows, which `keep` wrote."""
        target = {field.name: getattr(source.target, field.name) for field in fields(source.target)}  # type: ignore[arg-type]
        arrays = {name: value for name, value in target.items() if isinstance(value, np.ndarray)}
        for name, array in {"times": source.times, "starts": source.starts, **arrays}.items():
            self._write(bytes(-self._written % ALIGNMENT))
            self._places[name] = (str(array.dtype), array.shape, self._written)
            self._write(array.data)
        rest = {
            "places": self._places,
            "inputs": asdict(source.inputs),
            "target": type(source.target).__name__,
            "of_target": {name: None if name in arrays else value for name, value in target.items()},
            "notes": source.notes,
        }
        text = json.dumps(rest).encode()
        self._write(text)
        self._write(len(text).to_bytes(LENGTH, "little"))
        self._file.write(self._digest.digest())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._written += memoryview(data).nbytes


def _opened(path: Path) -> Source:
    """Open the source in a file."""
    with path.open("rb") as file:
        _check(file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(mapped[-DIGEST - LENGTH : -DIGEST], "little")
    rest: dict[str, Any] = json.loads(mapped[-DIGEST - LENGTH - length : -DIGEST - LENGTH])
    arrays = _arrays(mapped, rest["places"])
    inputs = rest["inputs"]
    of_target = {name: arrays.get(name, value) for name, value in rest["of_target"].items()}
    return Source(
        inputs=Inputs(tuple(Column(**column) for column in inputs["columns"]), inputs["lookback"], inputs["horizon"]),
        rows=arrays["rows"],
        times=arrays["times"],
        starts=arrays["starts"],
        target=TARGETS[rest["target"]](**of_target),
        notes=rest["notes"],
        release=(lambda: mapped.madvise(mmap.MADV_DONTNEED)) if hasattr(mmap, "MADV_DONTNEED") else nothing_to_release,
    )


def _check(file: BinaryIO) -> None:
    """Check that a file ends in the digest of its content; keeps none of it in the process's memory."""
    left = os.fstat(file.fileno()).st_size - DIGEST
    if left < LENGTH:
        raise _Damaged("it is cut short")
    digest = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(CHUNK, left))
        digest.update(chunk)
        left -= len(chunk)
    if digest.digest() != file.read(DIGEST):
        raise _Damaged("its SHA-256 is not the one it ends in")


def _arrays(mapped: mmap.mmap, places: dict[str, tuple[str, tuple[int, ...], int]]) -> dict[str, np.ndarray]:
    return {name: np.ndarray(shape, dtype, mapped, offset) for name, (dtype, shape, offset) in places.items()}


def _noted(source: Source, note: str) -> Source:
    source.notes.append(f"data.cache: {note}")
    return source
