"""Bars under any name, type and zone; what is wrong with them is named; no return crosses a gap or a contract."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tftq.data.bars
from tests.data.helpers import MINUTE, SHARED, bar_columns, bars_recipe, take, write
from tftq.data.bars import load_bars, read_bars
from tftq.data.features.table import BAR_COLUMNS
from tftq.errors import DataError

ZOO = (
    "decimal128",
    "dictionary_symbol",
    "epoch_ns_int64",
    "fixed_1e9_int64",
    "index_named",
    "many_row_groups",
    "naive_ts",
    "polars_written",
    "string_ts",
    "tz_us_eastern",
)
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")


@needs_shared
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str) -> None:
    expected = read_bars(SHARED / "es" / "ESZ3_1000bars.parquet")
    bars = read_bars(SHARED / "zoo" / f"{name}.parquet", time_zone="UTC" if name == "naive_ts" else None)
    assert np.array_equal(bars.times, expected.times)
    assert bars.names == expected.names == ("ESZ3",)
    for column, values in expected.columns.items():
        assert np.array_equal(bars.columns[column], values), column


@needs_shared
def test_a_local_time_without_a_zone_is_not_guessed() -> None:
    with pytest.raises(DataError, match=r"data\.time_zone"):
        read_bars(SHARED / "zoo" / "naive_ts.parquet")


@needs_shared
def test_contracts_in_one_file_stay_apart() -> None:
    source = load_bars(bars_recipe(SHARED / "es" / "ES_all_contracts.parquet"))
    assert any("8 contracts" in note for note in source.notes)
    returns = source.rows[:, BAR_COLUMNS.index("log_return_1")]
    assert np.abs(returns).max() < 0.02  # 0.57 across contracts
    assert np.abs(source.target.values(source.starts + 59, 10)).max() < 0.02
    times = source.times[source.starts[:, None] + np.arange(70)]
    assert (np.diff(times) == MINUTE).all()
    one = load_bars(bars_recipe(SHARED / "es" / "ES_all_contracts.parquet", symbol="ESZ3"))
    assert 0 < len(one.starts) < len(source.starts)


def test_usual_names_in_any_case(tmp_path: Path) -> None:
    columns = bar_columns(80)
    renamed = {"Date": columns["ts_event"], "O": columns["open"], "H": columns["high"], "L": columns["low"], "C": columns["close"]}
    bars = read_bars(write(tmp_path / "MNQ.parquet", renamed | {"Vol": columns["volume"], "Adj Close": columns["open"]}))
    assert np.array_equal(bars.columns["close"], columns["close"])
    assert bars.names == ("MNQ",)
    assert "columns not used: Adj Close" in bars.notes


def test_columns_that_are_missing_or_twice_there(tmp_path: Path) -> None:
    columns = bar_columns(80)
    without = {name: values for name, values in columns.items() if name not in ("close", "volume")}
    with pytest.raises(DataError, match=r"no column for close \(looked for close, .*no column for volume.*the file has ts_event"):
        read_bars(write(tmp_path / "a.parquet", without))
    with pytest.raises(DataError, match=r"close and CLOSE both name the column close"):
        read_bars(write(tmp_path / "b.parquet", columns | {"CLOSE": columns["close"]}))


def test_fixed_point_prices_are_noted(tmp_path: Path) -> None:
    columns = bar_columns(80)
    fixed = {name: np.round(columns[name] * 1e9).astype(np.int64) for name in ("open", "high", "low", "close")}
    bars = read_bars(write(tmp_path / "a.parquet", columns | fixed))
    assert np.array_equal(bars.columns["close"], columns["close"])
    assert any("fixed-point" in note for note in bars.notes)
    whole = {name: np.round(columns[name]).astype(np.int64) for name in ("open", "high", "low", "close")}
    assert read_bars(write(tmp_path / "b.parquet", columns | whole)).columns["close"][0] == whole["close"][0]


def test_t1_one_row_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "ES.parquet", take(bar_columns(100), np.r_[0:31, 30:100]))
    with pytest.raises(
        DataError, match=r"timestamp in 1 rows, first in row 31: 2024-01-08T00:30:00Z of ES is in row 30 too.*data.duplicates"
    ):
        read_bars(path)


def test_t4_the_same_bars_twice(tmp_path: Path) -> None:
    columns = bar_columns(100)
    path = write(tmp_path / "ES.parquet", take(columns, np.r_[0:100, 0:100]))
    with pytest.raises(DataError, match=r"duplicate timestamp in 100 rows, first in row 100"):
        read_bars(path)
    bars = read_bars(path, duplicates="drop")
    assert np.array_equal(bars.times, columns["ts_event"])
    assert np.array_equal(bars.columns["close"], columns["close"])
    assert "dropped 100 exact copies of rows" in bars.notes


def test_rows_of_one_time_that_differ_are_never_dropped(tmp_path: Path) -> None:
    columns = take(bar_columns(100), np.r_[0:100, 7, 3, 5])
    columns["volume"][101] += 1
    path = write(tmp_path / "ES.parquet", columns)
    with pytest.raises(DataError, match=r"duplicate timestamp in 1 rows, first in row 101: 2024-01-08T00:03:00Z.*with other values"):
        read_bars(path, duplicates="drop")


def test_t5_shuffled_rows_are_sorted_with_a_notice(tmp_path: Path) -> None:
    columns = bar_columns(100)
    bars = read_bars(write(tmp_path / "ES.parquet", take(columns, np.random.default_rng(0).permutation(100))))
    assert np.array_equal(bars.times, columns["ts_event"])
    assert np.array_equal(bars.columns["open"], columns["open"])
    assert any(note.startswith("sorted by time") for note in bars.notes)


def test_h4_missing_values(tmp_path: Path) -> None:
    columns = bar_columns(600)
    columns["close"][300] = np.nan
    columns["open"][[300, 301]] = np.nan
    path = write(tmp_path / "ES.parquet", columns)
    with pytest.raises(
        DataError, match=r"'open': 2 missing \(.*\), first in row 300, 2024-01-08T05:00:00Z; column 'close': 1 missing.*drop"
    ):
        read_bars(path)
    source = load_bars(bars_recipe(path, missing="drop"))
    assert len(source.starts) == (300 - 69) + (298 - 69)
    assert f"{531 - 231 - 229} windows left out because they touch a missing value" in source.notes
    assert np.isfinite(source.rows).all()


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("low", 0.0, "low is not above zero in 1 bars, first in row 7, 2024-01-08T00:07:00Z of ES"),
        ("volume", -1, "volume is below zero in 1 bars"),
        ("high", 1.0, "high is below low in 1 bars.*high 1,"),
        ("close", 9999.0, "open or close is outside low to high in 1 bars.*close 9999"),
    ],
)
def test_prices_that_cannot_be(tmp_path: Path, column: str, value: float, message: str) -> None:
    columns = bar_columns(80)
    columns[column][7] = value
    with pytest.raises(DataError, match=message):
        read_bars(write(tmp_path / "ES.parquet", columns))


def test_symbols(tmp_path: Path) -> None:
    columns = bar_columns(80) | {"symbol": np.array(["ESM4", "ESH4"] * 40)}
    path = write(tmp_path / "ES.parquet", columns)
    assert read_bars(path).names == ("ESH4", "ESM4")
    assert np.array_equal(read_bars(path, symbol="ESM4").columns["close"], columns["close"][::2])
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path), path, row_group_size=1)  # each group has a dictionary of its own
    assert np.array_equal(read_bars(path, symbol="ESM4").columns["close"], columns["close"][::2])
    columns["close"][[7, 8]] = -1  # ESH4 and ESM4 in turn
    path = write(tmp_path / "c.parquet", columns)
    with pytest.raises(DataError, match=r"close is not above zero in 1 bars, first in row 8, .* of ESM4"):
        read_bars(path, symbol="ESM4")
    with pytest.raises(DataError, match=r"data.symbol: no NQ in .*; it has ESH4, ESM4"):
        read_bars(path, symbol="NQ")
    with pytest.raises(DataError, match=r"'symbol': 1 missing, first in row 2"):
        read_bars(write(tmp_path / "b.parquet", take(bar_columns(80), slice(3)) | {"symbol": pa.array(["a", "b", None])}))


def test_t2_no_window_across_a_gap(tmp_path: Path) -> None:
    columns = bar_columns(600)
    source = load_bars(bars_recipe(write(tmp_path / "ES.parquet", take(columns, np.r_[0:300, 310:600]))))
    assert len(source.starts) == (300 - 69) + (290 - 69) == 452
    assert (np.diff(source.times[source.starts[:, None] + np.arange(70)]) == MINUTE).all()
    assert "cut at 1 steps other than 1 min: 1 of 11 min" in source.notes


def test_t3_two_sessions(tmp_path: Path) -> None:
    columns = bar_columns(780)
    columns["ts_event"][390:] += 1050 * MINUTE
    assert len(load_bars(bars_recipe(write(tmp_path / "ES.parquet", columns))).starts) == 2 * (390 - 69) == 642


def test_w1_69_bars_and_70(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"series ES: 70 needed, 69 found"):
        load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(69))))
    assert len(load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(70)))).starts) == 1
    warned = load_bars(bars_recipe(tmp_path / "ES.parquet", warmup=0)).notes
    assert "data.warmup 0 is below 50: a segment's first features see a market that stood still before it" in warned
    with pytest.raises(DataError, match=r"120 needed, 70 found.*\(warm-up 50 \+ lookback 60 \+ horizon 10\)"):
        load_bars(bars_recipe(tmp_path / "ES.parquet", warmup=50))


def test_features_begin_anew_in_each_segment(tmp_path: Path) -> None:
    columns = bar_columns(240)
    whole = load_bars(bars_recipe(write(tmp_path / "ES.parquet", take(columns, slice(120, 240)))))
    columns["ts_event"][120:] += 60 * MINUTE
    columns["close"][119] = columns["high"][119] = 5000.0  # a jump that no later feature may see
    cut = load_bars(bars_recipe(write(tmp_path / "ES.parquet", columns)))
    assert np.array_equal(cut.rows[120:, : len(BAR_COLUMNS)], whole.rows[:, : len(BAR_COLUMNS)])


@pytest.mark.parametrize("block", [7, 60])
def test_features_computed_in_blocks_are_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    path = write(tmp_path / "ES.parquet", take(bar_columns(400), np.r_[0:150, 160:400]))
    whole = load_bars(bars_recipe(path))
    monkeypatch.setattr(tftq.data.bars, "BLOCK", block)
    assert np.array_equal(load_bars(bars_recipe(path)).rows, whole.rows)


def test_short_segments_are_counted(tmp_path: Path) -> None:
    source = load_bars(bars_recipe(write(tmp_path / "ES.parquet", take(bar_columns(300), np.r_[0:40, 50:300]))))
    assert "1 of 2 segments (40 of 290 rows) are shorter than the 70 rows that a window needs and give none" in source.notes
    assert len(source.rows) == 250


def test_rows_of_one_bar_each(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a series needs at least two rows"):
        load_bars(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(1))))


def test_interleaved_contracts_out_of_order_are_sorted_with_a_notice(tmp_path: Path) -> None:
    """No row lies next to one of its own contract, and every contract runs backwards."""
    columns = bar_columns(200) | {"symbol": np.tile(["ESH4", "ESM4"], 100)}
    columns["ts_event"] = columns["ts_event"][np.repeat(np.arange(100)[::-1], 2)]
    rows = read_bars(write(tmp_path / "bars.parquet", columns))
    assert "sorted by time: 198 rows lay before an earlier one" in rows.notes
