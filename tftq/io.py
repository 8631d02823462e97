"""Atomic writes, hashes of files, and the versions of installed packages."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces the path at the end and is removed if anything failed.

    Args:
        path: the file; an existing one stays until the new one is complete.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())  # or a power cut could leave an empty file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def installed(package: str) -> str | None:
    """Return the version of an installed package; None where it is not, such as tftq itself when run from a checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
