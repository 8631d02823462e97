"""Rows kept in a file: the same bits, used only while whole, and never in the memory of the process for longer than they are read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tftq.data.cache
import tftq.data.load
from tests.data.helpers import bar_columns, bars_recipe, table_columns, table_recipe, write
from tftq.data.bars import load_bars
from tftq.data.load import load_datasets
from tftq.data.source import Source
from tftq.data.windows import Datasets, blocks
from tftq.errors import DataError
from tftq.recipe.schema import BarsRecipe

Reads = list[str]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The kind of data of every time that a file was read and not its cache."""
    kinds: Reads = []

    def counted(kind: str, read: Callable) -> Callable:
        return lambda *arguments: (kinds.append(kind), read(*arguments))[1]

    for kind, name in (("bars", "load_bars"), ("table", "read_table")):
        monkeypatch.setattr(tftq.data.load, name, counted(kind, getattr(tftq.data.load, name)))
    return kinds


def bars(folder: Path, **options: object) -> BarsRecipe:
    path = folder / "ES.parquet"
    if not path.exists():
        write(path, bar_columns(300))
    return bars_recipe(path, cache=folder / "cache", **options)


def kept(recipe: BarsRecipe) -> Path:
    (path,) = recipe.cache.iterdir()  # type: ignore[union-attr]
    return path


def notes(datasets: Datasets) -> list[str]:
    return [note for note in datasets.notes if note.startswith("data.cache")]


def assert_equal(one: Datasets, other: Datasets) -> None:
    for mine, its in zip(one[:3], other[:3], strict=True):
        assert (mine is None) == (its is None)
        if mine is not None:
            assert mine.inputs == its.inputs and mine.target_unit == its.target_unit
            assert mine.fingerprint() == its.fingerprint()
            for left, right in zip(mine.batch(range(3)), its.batch(range(3)), strict=True):
                assert left is right is None or np.array_equal(left, right)
            assert np.array_equal(mine.naive(range(3)), its.naive(range(3)))
            assert np.array_equal(mine.target_times(range(3)), its.target_times(range(3)))
    for left, right in zip(vars(one.scaling.history).values(), vars(other.scaling.history).values(), strict=True):
        assert np.array_equal(left, right)
    assert [note for note in one.notes if "cache" not in note] == [note for note in other.notes if "cache" not in note]


def test_bars_come_back_as_they_were(tmp_path: Path, reads: Reads) -> None:
    recipe = bars(tmp_path, test=0.2)
    plain = load_datasets(recipe.model_copy(update={"cache": None}))
    built, opened = load_datasets(recipe), load_datasets(recipe)
    assert reads == ["bars", "bars"]
    assert_equal(built, plain)
    assert_equal(opened, plain)
    assert notes(plain) == []
    assert notes(built) == [f"data.cache: rows written to {kept(recipe)} and mapped from there"]
    assert notes(opened) == [f"data.cache: rows mapped from {kept(recipe)}, where an earlier run left them"]


def test_a_table_comes_back_as_it_was(tmp_path: Path, reads: Reads) -> None:
    columns = table_columns(200)
    columns["y"][7] = np.nan
    recipe = table_recipe(write(tmp_path / "a.parquet", columns), cache=tmp_path / "deep" / "cache", missing="drop", calendar=["hour"])
    plain = load_datasets(recipe.model_copy(update={"cache": None}))
    built, opened = load_datasets(recipe), load_datasets(recipe)
    assert reads == ["table", "table"]
    assert_equal(built, plain)
    assert_equal(opened, plain)


def test_what_matters_makes_rows_anew_and_what_does_not_does_not(tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bars(tmp_path)
    load_datasets(recipe)
    moved = tmp_path / "moved.parquet"
    moved.write_bytes(recipe.path.read_bytes())
    for change in ({"validation": 0.3}, {"test": 0.1}, {"path": moved}):
        load_datasets(recipe.model_copy(update=change))
    assert len(reads) == 1
    for count, change in enumerate(({"horizon": 5}, {"lookback": 50}, {"warmup": 3}, {"time_zone": "America/Chicago"}), start=2):
        load_datasets(recipe.model_copy(update=change))
        assert len(reads) == count
    write(recipe.path, bar_columns(300, seed=1))
    load_datasets(recipe)
    assert len(reads) == 6
    monkeypatch.setattr(np, "__version__", "0")
    load_datasets(recipe)
    assert len(reads) == 7


def cut(content: bytes) -> bytes:
    return content[:-1000]


def flipped(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("damage", "words"),
    [(cut, "its SHA-256 is not the one it ends in"), (flipped, "its SHA-256 is not the one it ends in"), (emptied, "it is cut short")],
)
def test_a_damaged_file_is_made_anew(tmp_path: Path, reads: Reads, damage: Callable[[bytes], bytes], words: str) -> None:
    recipe = bars(tmp_path)
    load_datasets(recipe)
    path = kept(recipe)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(whole))
    again = load_datasets(recipe)
    assert notes(again)[0].endswith(f"and mapped from there; what was there was damaged: {words}")
    assert path.read_bytes() == whole
    assert_equal(again, load_datasets(recipe))
    assert len(reads) == 2


def test_nothing_is_left_of_a_build_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bars(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tftq.data.cache.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        load_datasets(recipe)
    assert list(recipe.cache.iterdir()) == []  # type: ignore[union-attr]


def test_a_part_of_a_file_is_never_used(tmp_path: Path, reads: Reads) -> None:
    recipe = bars(tmp_path)
    load_datasets(recipe)
    path = kept(recipe)
    path.rename(path.with_name(f"{path.name}.00000000.part"))
    load_datasets(recipe)
    assert len(reads) == 2


def test_data_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    recipe = bars_recipe(write(tmp_path / "ES.parquet", bar_columns(20)), cache=tmp_path / "cache")
    with pytest.raises(DataError, match="70 needed, 20 found"):
        load_datasets(recipe)
    assert list(recipe.cache.iterdir()) == []  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"data.path: no file .*absent"):
        load_datasets(recipe.model_copy(update={"path": tmp_path / "absent.parquet"}))
    with pytest.raises(DataError, match=r"data.cache: .*ES.parquet is a file; give a folder"):
        load_datasets(recipe.model_copy(update={"cache": recipe.path}))


def test_runs_that_build_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bars(tmp_path)
    others = []

    def overtaken(*arguments: Any) -> Source:
        monkeypatch.undo()
        source = load_bars(*arguments)  # its rows are written, the rest of its file is not
        others.append(load_datasets(recipe))
        return source

    monkeypatch.setattr(tftq.data.load, "load_bars", overtaken)
    assert_equal(load_datasets(recipe), others[0])
    assert_equal(load_datasets(recipe), others[0])
    assert kept(recipe).suffix == ".rows"


@pytest.mark.skipif(not hasattr(tftq.data.cache.mmap, "MADV_DONTNEED"), reason="the system cannot be told to let go of pages")
def test_pages_that_were_read_are_let_go(tmp_path: Path) -> None:
    columns = {name: np.random.default_rng(0).normal(size=200_000) for name in ("y", "x", "a", "b", "c", "d")}
    columns["time"] = np.arange(200_000) * 60 + 1_700_000_000
    observed = ["a", "b", "c", "d"]
    recipe = table_recipe(write(tmp_path / "a.parquet", columns), observed=observed, cache=tmp_path / "cache")
    load_datasets(recipe)
    train = load_datasets(recipe).train
    size = train.rows.nbytes

    def shared() -> int:
        return psutil.Process().memory_info().shared

    before = shared()
    train.rows.sum()
    assert shared() - before > size / 2  # so that the next lines would notice
    for indices in blocks(np.arange(len(train)), 2000):
        train.batch(indices)
    assert shared() - before < size / 10
