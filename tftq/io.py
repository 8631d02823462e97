"""Atomic writes, hashes of files, and the versions of installed packages."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which takes the path's place at the end and is gone if anything failed.

    Args:
        path: the file; what lies there stays until the new one is whole.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())  # or a power cut could leave the path to a file that is empty
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def installed(package: str) -> str | None:
    """The version of an installed package; None where it is not, as tftq itself when run from a checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
