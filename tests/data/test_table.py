"""A table of one series: roles, gaps, the seasonal baseline, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from tests.data.helpers import BEGIN, table_columns, table_recipe, take, write
from tftq.data.load import load_datasets
from tftq.data.table import read_table
from tftq.errors import DataError


def test_the_target_is_the_first_observed_column_and_known_ones_come_last(tmp_path: Path) -> None:
    columns = table_columns(50) | {"z": np.arange(50) * 2}
    path = write(tmp_path / "a.parquet", columns)
    source = read_table(table_recipe(path, observed=["z"], calendar=["hour", "month"]))
    names = [column.name for column in source.inputs.history]
    assert names == ["y", "z", "x", "hour_sin", "hour_cos", "month_sin", "month_cos"]
    assert [column.name for column in source.inputs.future] == names[2:]
    assert source.rows[7].tolist() == pytest.approx([7, 14, 2.5, np.sin(2 * np.pi * 7 / 24), np.cos(2 * np.pi * 7 / 24), 0, 1])
    assert len(source.starts) == 50 - 5
    assert source.target.unit == "y"


def test_csv_and_parquet_give_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50))
    pyarrow.csv.write_csv(pyarrow.parquet.read_table(path), tmp_path / "a.csv")
    from_parquet, from_csv = read_table(table_recipe(path)), read_table(table_recipe(tmp_path / "a.csv"))
    assert np.array_equal(from_parquet.rows, from_csv.rows)
    assert np.array_equal(from_parquet.times, from_csv.times)


def test_c2_an_integer_target_is_a_real_one(tmp_path: Path) -> None:
    columns = table_columns(50)
    real = read_table(table_recipe(write(tmp_path / "a.parquet", columns)))
    whole = read_table(table_recipe(write(tmp_path / "b.parquet", columns | {"y": np.arange(50)})))
    assert np.array_equal(whole.rows, real.rows)
    assert whole.inputs.history[0].categories == 0


def test_c3_nothing_known_of_the_future(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50))
    with pytest.raises(DataError, match=r"nothing is known of the future.*`data\.known`.*`data\.calendar`"):
        read_table(table_recipe(path, known=[]))
    assert len(read_table(table_recipe(path, known=[], calendar=["hour"])).inputs.future) == 2


def test_columns_that_the_table_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50))
    with pytest.raises(DataError, match=r"lacks columns .*\(data.target: demand; data.known: price\); it has time, y, x"):
        read_table(table_recipe(path, target="demand", known=["price"]))


def test_a_calendar_column_of_the_same_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50) | {"hour_sin": np.zeros(50)})
    with pytest.raises(DataError, match=r"data.calendar makes columns that the table has too: hour_sin"):
        read_table(table_recipe(path, known=["hour_sin"], calendar=["hour"]))


def test_a_gap_cuts_and_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", take(table_columns(50), np.r_[0:20, 23:50]))
    source = read_table(table_recipe(path))
    assert len(source.starts) == (20 - 5) + (27 - 5)
    assert "cut at 1 steps other than 1 h: 1 of 4 h" in source.notes


def test_missing_values_are_left_out_and_counted(tmp_path: Path) -> None:
    columns = table_columns(50)
    columns["y"][30] = np.nan
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=r"'y': 1 missing .* first in row 30, 2024-01-09T06:00:00Z"):
        read_table(table_recipe(path))
    source = read_table(table_recipe(path, missing="drop"))
    assert len(source.starts) == (30 - 5) + (19 - 5)
    assert "6 windows left out because they touch a missing value" in source.notes  # of 6 rows each, so 6 touch it


def naive_of(path: Path, starts: list[int], **options: object) -> list[list[float]]:
    source = read_table(table_recipe(path, **options))
    last = np.array(starts) + 3
    return source.target.naive(last, source.inputs.horizon).tolist()


def test_the_naive_baseline_is_the_season_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50))
    # y counts rows: the window of rows 20 to 23 forecasts 24 and 25.
    assert naive_of(path, [20], season=3) == [[21, 22]]
    assert naive_of(path, [20], season=1) == [[23, 23]]  # never a value inside the horizon
    assert naive_of(path, [20], season=3, horizon=5) == [[21, 22, 23, 21, 22]]
    assert naive_of(path, [20], season=12) == [[12, 13]]  # longer than the lookback
    assert naive_of(path, [8], season=12) == [[0, 1]]
    assert naive_of(path, [7], season=12) == [[10, 0]]  # no row so early: the last value stands in


def test_the_naive_baseline_keeps_its_phase_across_a_gap(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", take(table_columns(50), np.r_[0:20, 23:50]))
    # Row 23 of the file is hour 26. Hours 30 and 31 look back to 20 and 21, which are absent, or to 18 and 19.
    assert naive_of(path, [23], season=12) == [[18, 19]]
    assert naive_of(path, [23], season=10) == [[29, 29]]


def test_a_missing_value_is_no_baseline(tmp_path: Path) -> None:
    columns = table_columns(50)
    columns["y"][18] = np.nan
    assert naive_of(write(tmp_path / "a.parquet", columns), [26], season=12, missing="drop") == [[29, 19]]


def test_values_without_a_season_are_counted(tmp_path: Path) -> None:
    datasets = load_datasets(table_recipe(write(tmp_path / "a.parquet", table_columns(50)), season=46))
    # Of these targets, the 11 in rows 40 to 45 have nothing 46 rows before.
    assert rows_of(datasets.validation.target_times(range(9)).tolist()) == [[row, row + 1] for row in range(40, 49)]
    assert "validation: 11 values of the naive baseline have no row a season before; the last value stands in" in datasets.notes


def rows_of(times: list[list[int]]) -> list[list[int]]:
    return [[(time - BEGIN) // 3_600_000_000_000 for time in window] for window in times]


def test_local_times_without_a_zone_are_taken_as_they_lie(tmp_path: Path) -> None:
    columns = table_columns(50)
    here = read_table(table_recipe(write(tmp_path / "a.parquet", columns), calendar=["hour"]))
    there = read_table(table_recipe(tmp_path / "a.parquet", calendar=["hour"], time_zone="America/Chicago"))
    assert np.array_equal(here.rows, there.rows)  # the clock shows the same
    assert (there.times - here.times == 6 * 3_600_000_000_000).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (1.7e9 + np.arange(50) % 15, r"'y': its values lie within 14 of each other near 1\.7e\+09.* subtract a constant"),
        (np.arange(50) * 1e36, r"'y' holds 4\.9e\+37; allowed are numbers up to 1e\+30"),
    ],
)
def test_what_float32_cannot_tell_apart_is_refused(tmp_path: Path, values: np.ndarray, message: str) -> None:
    path = write(tmp_path / "a.parquet", table_columns(50) | {"y": values})
    with pytest.raises(DataError, match=message):
        read_table(table_recipe(path))


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,y,x,x\n2024-01-01T00:00:00Z,1,2,3\n")
    with pytest.raises(DataError, match="several columns named 'x'"):
        read_table(table_recipe(tmp_path / "a.csv"))


def test_column_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("time,y,caf\xe9\n2024-01-01T00:00:00Z,1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        read_table(table_recipe(tmp_path / "a.csv"))
