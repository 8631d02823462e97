"""Read Parquet or CSV as plain arrays: float64 numbers and int64 nanoseconds in UTC, for any types in the file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tftq.errors import DataError

# Casts and other functions of Arrow import pyarrow.compute, which takes 9 MB: columns of the usual types go without them.

# Epochs from 1980 to 2100 in seconds; the four units do not overlap, so the size of a number determines its unit.
EPOCH_SECONDS = (315_532_800, 4_102_444_800)
EPOCH_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Columns:
    """The columns of a file, read one at a time and one row group at a time, to hold no more than that.

    Args:
        schema: the names and types of the columns.
        rows: how many rows there are.
        batches: yields the rows of one column, as record batches.
    """

    schema: pa.Schema
    rows: int
    batches: Callable[[str], Iterator[pa.RecordBatch]]

    @classmethod
    def of_table(cls, table: pa.Table) -> "Columns":
        """Wrap a table in memory."""
        return cls(table.schema, table.num_rows, lambda column: iter(table.select([column]).to_batches()))

    @classmethod
    def of_parquet(cls, path: Path) -> "Columns":
        """Open a parquet file; only its footer is read now."""
        with pyarrow.parquet.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata

        def batches(column: str) -> Iterator[pa.RecordBatch]:
            encoded = [column] if pa.types.is_string(schema.field(column).type) else None  # as distinct values and indices into them
            with _readable(path), pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=encoded) as file:
                yield from file.iter_batches(columns=[column])

        return cls(schema, metadata.num_rows, batches)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return list(self.schema.names)

    def type(self, column: str) -> pa.DataType:
        """Return the type of a column's values, without dictionary encoding."""
        kind = self.schema.field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def chunks(self, column: str) -> Iterator[pa.Array]:
        """Yield the rows of a column in batches, without dictionary encoding."""
        for batch in self.batches(column):
            chunk = batch.column(column)
            yield chunk.cast(self.type(column)) if pa.types.is_dictionary(chunk.type) else chunk
        pa.default_memory_pool().release_unused()  # Arrow would keep freed memory

    def texts(self, column: str) -> Iterator[pa.DictionaryArray]:
        """Yield the rows of a column as text in batches, as distinct values and indices into them.

        Raises:
            pa.ArrowException: the column has no text form.
        """
        own = pa.types.is_string(self.schema.field(column).type)
        for batch in self.batches(column):
            chunk = batch.column(column)
            yield chunk if own and pa.types.is_dictionary(chunk.type) else chunk.cast(pa.string()).dictionary_encode()

    def whole(self, column: str) -> pa.ChunkedArray:
        """Read all rows of a column, without dictionary encoding."""
        return pa.chunked_array(list(self.chunks(column)), self.type(column))


def read_file(path: Path | str) -> Columns:
    """Open a parquet or CSV file; a CSV file is read whole at once.

    Args:
        path: a file whose name ends in .parquet, .pq, .csv or .csv.gz.

    Returns:
        Its columns, unconverted.

    Raises:
        DataError: no such file, another ending, a damaged file (of parquet: its footer; its rows as they are read), a column
            that occurs twice, or no rows.
    """
    path = existing(path)
    name = path.name.lower()
    with _readable(path):
        if name.endswith((".parquet", ".pq")):
            columns = Columns.of_parquet(path)
        elif name.endswith((".csv", ".csv.gz")):
            from pyarrow.csv import read_csv

            columns = Columns.of_table(read_csv(path))
        else:
            raise DataError(f"data.path: {path.name} is neither .parquet, .pq, .csv nor .csv.gz; convert it to one of these")
        names = columns.names
    if columns.rows == 0:
        raise DataError(f"data.path: {path} has no rows")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"data.path: {path} has several columns named {', '.join(map(repr, twice))}; rename or remove them")
    return columns


def existing(path: Path | str) -> Path:
    """Return the path of an existing file.

    Raises:
        DataError: it does not exist.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"data.path: no file {path}; give the path of a parquet or CSV file")
    return path


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file in the error if it cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data.path: {path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data.path: {path} has column names that are not UTF-8 ({error.reason}); save it as UTF-8") from error


def numbers(file: Columns, column: str) -> np.ndarray:
    """Convert a column to float64 [rows]; a null becomes NaN.

    Raises:
        DataError: the column does not hold numbers.
    """
    kind = file.type(column)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"column {column!r} holds {kind}; allowed are integers, floats, decimals and booleans; convert it to numbers")
    values, row = np.empty(file.rows), 0
    for chunk in file.chunks(column):
        if pa.types.is_boolean(kind):
            chunk = chunk.cast(pa.int8())
        elif pa.types.is_decimal(kind):
            chunk = chunk.cast(pa.float64(), safe=False)
        values[row : row + len(chunk)] = chunk.to_numpy(zero_copy_only=False)  # NaN where an integer is missing too
        row += len(chunk)
    return values


def nanoseconds(file: Columns, column: str, time_zone: str | None, refuse_naive: bool) -> tuple[np.ndarray, list[str]]:
    """Convert a column of times to int64 nanoseconds since 1970 in UTC.

    A parquet timestamp without a zone is a local time by the format's own definition, so that it needs `time_zone`
    where instants matter (`refuse_naive`). Text in a parquet file without an offset is read as UTC, with a note.

    Args:
        file: the columns of the file.
        column: the name of the time column: timestamps, dates, ISO 8601 text or integer epochs (s, ms, us, ns).
        time_zone: the zone of times that carry none, such as UTC or America/Chicago; None where the recipe gives none.
        refuse_naive: whether a timestamp without a zone is an error while `time_zone` is None; else it is taken as UTC.

    Returns:
        Times [rows] and notes.

    Raises:
        DataError: a missing or unreadable time, or a naive one where that is refused.
    """
    values = file.whole(column)
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy())[0])
        raise DataError(f"time column {column!r}: {values.null_count} missing, first in row {row}; every row needs a time")
    notes: list[str] = []
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if pa.types.is_integer(values.type):
        return _epochs(values, column), notes
    try:
        if is_text:
            values = _parsed(values)
            if values.type.tz is None and time_zone is None:
                notes.append(f"time column {column!r} is text without an offset: read as UTC (data.time_zone changes it)")
        elif pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("ms"))
        elif not pa.types.is_timestamp(values.type):
            raise DataError(
                f"time column {column!r} holds {values.type}; "
                "allowed are timestamps, dates, ISO 8601 text and integer epochs (s, ms, us, ns)"
            )
        elif values.type.tz is None and time_zone is None and refuse_naive:
            raise DataError(
                f"time column {column!r} holds local times without a zone; say which with data.time_zone, such as UTC or America/Chicago"
            )
        if values.type.tz is not None and time_zone is not None:
            notes.append(f"time column {column!r} carries a zone or offset: data.time_zone sets the clock of calendar columns only")
        elif time_zone not in (None, "UTC"):
            from pyarrow.compute import assume_timezone

            values = assume_timezone(values, time_zone)
        if values.type.unit != "ns":
            values = values.cast(pa.timestamp("ns", tz=values.type.tz))
        return values.to_numpy().view(np.int64), notes
    except pa.ArrowException as error:
        zone = f" in time zone {time_zone}" if time_zone else ""
        raise DataError(f"time column {column!r} cannot be read{zone}: {error}") from error


def wall_clock(times: np.ndarray, time_zone: str | None) -> np.ndarray:
    """Convert `times` to the wall clock of `time_zone` (None: UTC), both int64 nanoseconds [rows]."""
    if time_zone in (None, "UTC"):
        return times
    from pyarrow.compute import local_timestamp

    try:
        return local_timestamp(pa.array(times).cast(pa.timestamp("ns", tz=time_zone))).cast(pa.int64()).to_numpy()
    except pa.ArrowException as error:
        raise DataError(f"data.time_zone: {time_zone} is no zone of the time zone database, such as UTC or America/Chicago") from error


def iso(time: int) -> str:
    """Format nanoseconds since 1970: 2013-10-07T00:00:00Z."""
    text = np.datetime_as_string(np.datetime64(int(time), "ns"))
    return text.removesuffix(".000000000") + "Z"


def duration(nanoseconds: int) -> str:
    """Format a span of time: 1 min, 2 h, 1.5 s."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if nanoseconds >= size * 1_000_000_000 and nanoseconds % (size * 1_000_000_000) == 0:
            return f"{nanoseconds // (size * 1_000_000_000)} {unit}"
    return f"{nanoseconds / 1e9:g} s"


def _parsed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return values.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:  # it carries offsets, or is no time at all, which the next line reports
        return values.cast(pa.timestamp("ns", tz="UTC"))


def _epochs(values: pa.ChunkedArray, column: str) -> np.ndarray:
    signed = values if pa.types.is_int64(values.type) else values.cast(pa.int64(), safe=False)
    whole = signed.to_numpy()  # numbers that do not fit become negative, and match no unit
    low, high = int(whole.min()), int(whole.max())
    for per_second in EPOCH_UNITS.values():
        if EPOCH_SECONDS[0] * per_second <= low and high < EPOCH_SECONDS[1] * per_second:
            return whole * (1_000_000_000 // per_second)
    raise DataError(
        f"time column {column!r} holds integers from {low} to {high}; "
        f"allowed are epochs from 1980 to 2100 in {', '.join(EPOCH_UNITS)}, all in one unit"
    )
