"""Windows gather what slices would, and no input knows the target."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.helpers import bar_columns, bars_recipe, table_columns, table_recipe, write
from tftq.data.bars import load_bars
from tftq.data.load import load_datasets
from tftq.data.source import Source
from tftq.data.table import read_table
from tftq.data.windows import Windows


def windows_of(source: Source) -> Windows:
    return Windows("all", source.inputs, source.rows, source.times, source.starts, source.target)


def test_a_batch_is_the_slices(tmp_path: Path) -> None:
    windows = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(100)))))
    batch = windows.batch([3, 0, 30])
    assert batch.static is None
    assert {name: tuple(t.shape) for name, t in zip(("history", "future"), batch.inputs, strict=True)} == windows.inputs.shapes(3)
    for index, start in enumerate([3, 0, 30]):
        assert np.array_equal(batch.history[index], windows.rows[start : start + 60])
        assert np.array_equal(batch.future[index], windows.rows[start + 60 : start + 70, 214:])
    assert all(array.dtype == np.float32 for array in (batch.history, batch.future, batch.target))


def test_some_of_them_are_windows_of_their_own(tmp_path: Path) -> None:
    windows = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(100)))))
    some = windows.some(np.array([5, 2]))
    assert len(some) == 2 and some.rows is windows.rows
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(some.batch([0, 1]).inputs, windows.batch([5, 2]).inputs, strict=True))


def test_targets_are_known_by_their_values_and_times_alone(tmp_path: Path) -> None:
    windows = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(100)))))
    before = windows.target_fingerprint()
    windows.rows[10, 3] += 1  # an input
    assert windows.target_fingerprint() == before
    assert windows.some(np.arange(len(windows) - 1)).target_fingerprint() != before
    windows.times[80] += 1
    assert (moved := windows.target_fingerprint()) != before
    windows.target.close[80] += 1  # type: ignore[attr-defined]
    assert windows.target_fingerprint() not in (before, moved)


def test_the_target_is_the_cumulative_log_return_and_implies_the_price(tmp_path: Path) -> None:
    columns = bar_columns(100)
    windows = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", columns))))
    target = windows.batch(np.array([5])).target[0].astype(np.float64)
    close = columns["close"]
    np.testing.assert_allclose(target, np.log(close[65:75] / close[64]), atol=1e-9)
    assert windows.last_close([5]).tolist() == [close[64]]
    np.testing.assert_allclose(close[64] * np.exp(target), close[65:75], rtol=1e-9)
    assert windows.naive([5, 6]).tolist() == [[0.0] * 10] * 2
    assert windows.target_unit == "log return"
    assert windows.target_times([5])[0].tolist() == columns["ts_event"][65:75].tolist()


def test_t7_bars_inside_the_horizon_reach_no_input(tmp_path: Path) -> None:
    columns = bar_columns(100)
    before = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", columns)))).batch([10])
    for name in ("open", "high", "low", "close"):
        columns[name][70:] += 25.0
    columns["volume"][70:] += 1000
    after = windows_of(load_bars(bars_recipe(write(tmp_path / "ES.parquet", columns)))).batch([10])
    assert np.array_equal(before.history, after.history)
    assert np.array_equal(before.future, after.future)
    assert not np.array_equal(before.target, after.target)


def test_t7_rows_inside_the_horizon_reach_no_input(tmp_path: Path) -> None:
    columns = table_columns(50)
    before = windows_of(read_table(table_recipe(write(tmp_path / "a.parquet", columns))))
    columns["y"][24:] *= -3
    after = windows_of(read_table(table_recipe(write(tmp_path / "a.parquet", columns))))
    for one, other in zip(before.batch([20]).inputs, after.batch([20]).inputs, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(before.naive([20]), after.naive([20]))
    assert after.batch([20]).target.tolist() == [[-72, -75]]


def test_parts_share_one_array(tmp_path: Path) -> None:
    datasets = load_datasets(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(400)), test=0.2))
    assert datasets.test is not None
    assert datasets.train.rows is datasets.validation.rows is datasets.test.rows


@pytest.mark.parametrize("mapped", [False, True])
def test_a_history_without_some_columns_is_of_the_same_rows(tmp_path: Path, mapped: bool) -> None:
    cache = {"cache": tmp_path / "kept"} if mapped else {}
    whole = load_datasets(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(200)), test=0.2, **cache))
    names = [column.name for column in whole.train.inputs.history]
    kept = [7, 30, 213, 216, 224]  # observed ones, and two of the known, which begin at 214
    pruned = whole.without([name for place, name in enumerate(names) if place not in kept])
    for before, after in zip(whole[:3], pruned[:3], strict=True):
        assert before is not None and after is not None
        assert after.rows is before.rows
        one, other = before.batch([2, 0]), after.batch([2, 0])
        assert np.array_equal(other.history, one.history[..., kept]) and np.array_equal(other.future, one.future)
        assert np.array_equal(other.target, one.target) and after.fingerprint() != before.fingerprint()
    inputs = pruned.train.inputs
    assert [column.name for column in inputs.history] == [names[place] for place in kept] and inputs.history_places == kept
    assert inputs.shapes(3) == {"history": (3, 60, 5), "future": (3, 10, 11)} and inputs.columns == whole.train.inputs.columns
    again = pruned.without([names[30]]).train
    assert np.array_equal(again.batch([1]).history, whole.train.batch([1]).history[..., [7, 213, 216, 224]])
