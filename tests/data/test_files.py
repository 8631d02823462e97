"""Times and numbers of any type become int64 nanoseconds in UTC and float64."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.data.helpers import BEGIN, write
from tftq.data.files import Columns, duration, iso, nanoseconds, numbers, read_file, wall_clock
from tftq.errors import DataError

EXPECTED = np.array([BEGIN, BEGIN + 60_000_000_000])


def times_of(values: pa.Array, time_zone: str | None = None, refuse_naive: bool = True) -> tuple[np.ndarray, list[str]]:
    return nanoseconds(Columns.of_table(pa.table({"t": values})), "t", time_zone, refuse_naive)


@pytest.mark.parametrize("unit, per_second", [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_epochs_and_timestamps_in_every_unit(unit: str, per_second: int) -> None:
    epochs = pa.array(EXPECTED // (10**9 // per_second))
    assert times_of(epochs)[0].tolist() == EXPECTED.tolist()
    assert times_of(epochs.cast(pa.timestamp(unit, tz="UTC")))[0].tolist() == EXPECTED.tolist()
    assert times_of(epochs.cast(pa.timestamp(unit, tz="Asia/Tokyo")))[0].tolist() == EXPECTED.tolist()


def test_text_with_and_without_an_offset() -> None:
    plain = pa.array(["2024-01-08 00:00:00", "2024-01-08T00:01:00"])
    times, notes = times_of(plain)
    assert times.tolist() == EXPECTED.tolist()
    assert "read as UTC" in notes[0]
    assert times_of(plain, "UTC") == (pytest.approx(EXPECTED), [])
    offset = pa.array(["2024-01-08T01:00:00+01:00", "2024-01-08T00:01:00Z"])
    assert times_of(offset)[0].tolist() == EXPECTED.tolist()
    assert times_of(plain.dictionary_encode())[0].tolist() == EXPECTED.tolist()


def test_local_times_need_their_zone() -> None:
    local = pa.array((EXPECTED - 6 * 3600 * 10**9).astype("datetime64[ns]"))
    with pytest.raises(DataError, match=r"'t' holds local times without a zone.*data\.time_zone"):
        times_of(local)
    assert times_of(local, "America/Chicago")[0].tolist() == EXPECTED.tolist()
    assert times_of(local, refuse_naive=False)[0].tolist() == (EXPECTED - 6 * 3600 * 10**9).tolist()


def test_a_zone_beside_times_that_carry_one_is_noted() -> None:
    aware = pa.array(EXPECTED).cast(pa.timestamp("ns", tz="UTC"))
    times, notes = times_of(aware, "America/Chicago")
    assert times.tolist() == EXPECTED.tolist()
    assert "calendar columns only" in notes[0]


def test_dates() -> None:
    assert times_of(pa.array([19_730]).cast(pa.int32()).cast(pa.date32()), refuse_naive=False)[0].tolist() == [19_730 * 86_400 * 10**9]


@pytest.mark.parametrize(
    "values, time_zone, message",
    [
        (pa.array(["2024-01-08 00:00", "noon"]), None, "'t' cannot be read.*noon"),
        (pa.array([BEGIN, None]), None, "1 missing, first in row 1"),
        (pa.array([1.5]), None, "'t' holds double; allowed"),
        (pa.array([7]), None, "integers from 7 to 7; allowed are epochs from 1980"),
        (pa.array([BEGIN // 10**9, BEGIN]), None, "all in one unit"),
        (pa.array(["2024-01-08 00:00"]), "Mars/Olympus", "cannot be read in time zone Mars/Olympus"),
        (pa.array(["2024-03-10 02:30"]), "America/Chicago", "cannot be read in time zone America"),  # summer time skips this hour
    ],
)
def test_times_that_cannot_be(values: pa.Array, time_zone: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        times_of(values, time_zone)


def test_numbers() -> None:
    table = pa.table(
        {
            "whole": [1, None, 3],
            "exact": pa.array([Decimal("1676.250000000"), None, Decimal("0.1")], pa.decimal128(18, 9)),
            "truth": [True, False, True],
            "text": ["1", "2", "3"],
        }
    )
    file = Columns.of_table(table)
    np.testing.assert_array_equal(numbers(file, "whole"), [1, np.nan, 3])
    np.testing.assert_array_equal(numbers(file, "exact"), [1676.25, np.nan, 0.1])
    np.testing.assert_array_equal(numbers(file, "truth"), [1, 0, 1])
    with pytest.raises(DataError, match=r"'text' holds string; allowed are integers"):
        numbers(file, "text")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*absent.parquet"):
        read_file(tmp_path / "absent.parquet")
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(DataError, match=r"notes.txt is neither \.parquet"):
        read_file(tmp_path / "notes.txt")
    (tmp_path / "broken.parquet").write_text("a")
    with pytest.raises(DataError, match=r"broken.parquet cannot be read"):
        read_file(tmp_path / "broken.parquet")
    with pytest.raises(DataError, match=r"empty.parquet has no rows"):
        read_file(write(tmp_path / "empty.parquet", {"a": pa.array([], pa.int64())}))


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"y": np.random.default_rng(0).normal(size=1000)})
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # the footer is whole, the first page is not
    path.write_bytes(content)
    file = read_file(path)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        numbers(file, "y")


def test_row_groups_and_names_with_dots(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"y": pa.array([1, None, 3, 4, 5]), "y.z": pa.array(["a", "b", "a", "c", None]).dictionary_encode()})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    file = read_file(path)
    assert (file.names, file.rows, file.type("y.z")) == (["y", "y.z"], 5, pa.string())
    np.testing.assert_array_equal(numbers(file, "y"), [1, np.nan, 3, 4, 5])
    assert file.whole("y.z").to_pylist() == ["a", "b", "a", "c", None]


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("time,y\n2024-01-08 00:00:00,1\n2024-01-08 01:00:00,2.5\n")
    assert numbers(read_file(path), "y").tolist() == [1, 2.5]


def test_words_for_times() -> None:
    assert iso(BEGIN) == "2024-01-08T00:00:00Z"
    assert [duration(n * 10**9) for n in (1, 60, 90, 3600, 172_800)] == ["1 s", "1 min", "90 s", "1 h", "2 d"]


def test_wall_clock() -> None:
    assert wall_clock(EXPECTED, None).tolist() == EXPECTED.tolist()
    assert wall_clock(EXPECTED, "America/Chicago").tolist() == (EXPECTED - 6 * 3600 * 10**9).tolist()
    with pytest.raises(DataError, match=r"Mars/Olympus is no zone"):
        wall_clock(EXPECTED, "Mars/Olympus")
