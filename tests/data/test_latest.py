"""The newest window from the end of a file is, to the bit, the last one of the whole file; else the whole file is read, and told."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.helpers import BEGIN, MINUTE, SHARED, bar_columns, bars_recipe, table_columns, table_recipe, take, write
from tests.data.test_bars import ZOO, needs_shared
from tftq.data.history import History, read_history
from tftq.errors import DataError
from tftq.recipe.schema import BarsRecipe, TableRecipe

HOUR = 60 * MINUTE


def newest(recipe: BarsRecipe | TableRecipe, step: int = MINUTE) -> History:
    """The newest window from the end of the file, which must be the last of all."""
    one, every = read_history(recipe, step, newest=True), read_history(recipe, step)
    last = np.array([len(every) - 1])
    assert len(one) == 1
    for ours, theirs in zip(one.batch(np.array([0])), every.batch(last), strict=True):
        assert np.array_equal(ours, theirs)
    assert one.origins(np.array([0])) == every.origins(last)
    return one


def streamed(history: History) -> bool:
    return not any("read the whole file" in note for note in history.notes)


@pytest.mark.parametrize("count", [60, 70, 110, 111, 500])
@pytest.mark.parametrize("group", [None, 7, 64])
def test_one_segment(tmp_path: Path, count: int, group: int | None) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(bar_columns(count)), path, row_group_size=group)
    assert streamed(newest(bars_recipe(path)))


def test_only_the_rows_that_a_window_needs_are_held(tmp_path: Path) -> None:
    history = newest(bars_recipe(write(tmp_path / "a.parquet", bar_columns(10_000))))
    assert len(history.rows) == 60 + 50


@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(0, 70), st.integers(1, 100))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_segments_of_any_length(tmp_path: Path, lengths: list[int], warmup: int, group: int) -> None:
    """Runs of bars with a minute missing after each; the last one that is long enough ends in the newest window."""
    lengths = [*lengths[:-1], 100, lengths[-1]]
    keep = np.delete(np.arange(sum(lengths) + len(lengths)), np.cumsum(np.add(lengths, 1)) - 1)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(take(bar_columns(len(keep) + len(lengths)), keep)), path, row_group_size=group)
    history = newest(bars_recipe(path, warmup=warmup, lookback=5))
    ends = np.cumsum(np.add(lengths, 1)) - 2
    expected = [end for end, length in zip(ends, lengths, strict=True) if length >= warmup + 5][-1]
    assert streamed(history) and history.origins(np.array([0])) == BEGIN + MINUTE * expected
    assert any("the newest window ends at" in note for note in history.notes) == (expected != ends[-1])


@pytest.mark.parametrize("symbol", ["ESZ3", "ESH4"])
def test_one_contract_of_several(tmp_path: Path, symbol: str) -> None:
    first, second = bar_columns(300, seed=1), bar_columns(300, seed=2)
    order = np.argsort(np.r_[first["ts_event"], second["ts_event"]], kind="stable")
    both = {name: np.r_[first[name], second[name]][order] for name in first}
    both["symbol"] = np.r_[np.full(300, "ESZ3"), np.full(300, "ESH4")][order]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: pa.array(values) for name, values in both.items()}), path, row_group_size=50)
    assert streamed(newest(bars_recipe(path, symbol=symbol)))


@needs_shared
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str) -> None:
    options = {"time_zone": "UTC"} if name == "naive_ts" else {}
    assert streamed(newest(bars_recipe(SHARED / "zoo" / f"{name}.parquet", warmup=50, **options)))


@needs_shared
def test_a_real_contract() -> None:
    assert streamed(newest(bars_recipe(SHARED / "es" / "ES_all_contracts.parquet", symbol="ESH4", warmup=20, lookback=30)))


@pytest.mark.parametrize("broken", [399, 395, 250, 30])
def test_bars_with_missing_values(tmp_path: Path, broken: int) -> None:
    columns = bar_columns(400)
    columns["low"][broken] = np.nan
    assert streamed(newest(bars_recipe(write(tmp_path / "a.parquet", columns), missing="drop")))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [(np.r_[0:200, 50:60], "its times do not increase"), (np.r_[100:200, 0:100], "its times do not increase")],
    ids=["copies", "disorder"],
)
def test_what_is_not_in_order_is_read_whole(tmp_path: Path, rows: Any, reason: str) -> None:
    path = write(tmp_path / "a.parquet", take(bar_columns(200), rows))
    history = newest(bars_recipe(path, duplicates="drop"))
    assert any(note.startswith(f"read the whole file to find its newest window: {reason}") for note in history.notes)


def test_csv_is_read_whole(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(pa.table(bar_columns(100)), tmp_path / "a.csv")
    history = newest(bars_recipe(tmp_path / "a.csv"))
    assert any("it is no parquet file" in note for note in history.notes)


@pytest.mark.parametrize("group", [None, 7])
@pytest.mark.parametrize("known_ahead", [2, 5])
def test_tables_with_what_is_known_of_the_future(tmp_path: Path, group: int | None, known_ahead: int) -> None:
    columns = table_columns(50 + known_ahead)
    columns["y"][50:] = np.nan
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group)
    history = newest(table_recipe(path, calendar=["hour"]), HOUR)
    assert streamed(history) and history.origins(np.array([0])) == BEGIN + 49 * HOUR and len(history.rows) == 4 + 2


def test_a_damaged_file_is_refused_by_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        read_history(bars_recipe(tmp_path / "a.parquet"), MINUTE, newest=True)


@pytest.mark.parametrize("change", [200, 370, 395])
def test_contracts_one_after_another_without_a_gap(tmp_path: Path, change: int) -> None:
    """The newest window lies in the second contract where that is long enough, and its bars' age begins there."""
    bars = bar_columns(400)
    bars["symbol"] = np.r_[np.full(change, "A"), np.full(400 - change, "B")]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: pa.array(values) for name, values in bars.items()}), path)
    history = newest(bars_recipe(path))
    assert any("read the whole file to find its newest window: it holds several symbols" in note for note in history.notes)


def test_a_window_of_a_single_row(tmp_path: Path) -> None:
    columns = table_columns(30)
    history = newest(table_recipe(write(tmp_path / "a.parquet", columns), lookback=1, known=(), calendar=("hour",)), HOUR)
    assert any("a single row" in note for note in history.notes)


def test_single_rows_on_both_sides_of_a_gap_are_no_neighbours(tmp_path: Path) -> None:
    columns = take(table_columns(50), np.r_[0:20, 30:50])
    history = read_history(table_recipe(write(tmp_path / "a.parquet", columns), lookback=1, known=(), calendar=("hour",)), HOUR)
    assert history.ahead.tolist() == [*range(19, -1, -1), *range(19, -1, -1)]
