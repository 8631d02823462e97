"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from tftq.io import sha256, written_whole


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "a", []
    monkeypatch.setattr("os.fsync", lambda file: found.append((os.fstat(file).st_size, path.exists())))
    with written_whole(path) as part:
        part.write_bytes(b"abc")
    assert found == [(3, False)] and path.read_bytes() == b"abc" and list(tmp_path.iterdir()) == [path]
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2


def test_what_fails_leaves_what_lay_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    with pytest.raises(OSError, match="disk full"), written_whole(path) as part:
        part.write_text("half")
        raise OSError("disk full")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
