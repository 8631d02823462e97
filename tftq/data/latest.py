"""Read the newest window of a parquet file from only the rows it needs: memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tftq.data.bars import NAMES, PRICES
from tftq.data.features.table import MEMORY
from tftq.data.files import Columns, iso, nanoseconds, numbers
from tftq.data.source import Tail

if TYPE_CHECKING:
    from tftq.recipe.schema import BarsRecipe, TableRecipe

BATCH_ROWS = 4096  # of a file, held at a time
READ_BYTES = 65_536  # of a compressed column, held at a time


class NotStreamedError(Exception):
    """The reason why the newest window cannot be read without reading the whole file."""


def newest_rows(recipe: BarsRecipe | TableRecipe, step: int) -> Tail:
    """Read the rows of the newest window, those its features depend on, and the known rows of its horizon.

    The times are read once, in batches, to find where the window's segment began and whether they are in order; values are read from the
    row groups that hold the window.

    Args:
        recipe: the `data` part of a recipe.
        step: between the rows of a window, in nanoseconds.

    Raises:
        NotStreamedError: the file is not parquet, not sorted by time, or has no such window; use the reader of whole files.
        DataError: a time that cannot be read.
    """
    if not recipe.path.name.lower().endswith((".parquet", ".pq")) or not recipe.path.is_file():
        raise NotStreamedError("it is no parquet file")
    warmup, context, horizon = (recipe.warmup, MEMORY - 1, 0) if recipe.kind == "bars" else (0, 0, recipe.horizon)
    needed = warmup + recipe.lookback
    try:
        with pq.ParquetFile(recipe.path, buffer_size=READ_BYTES, pre_buffer=False) as file:
            scan = _Scan(file, recipe)
            newest = scan.newest(step, needed)
            count = min(newest.length, context + recipe.lookback)
            if count < 2:
                raise NotStreamedError("its window is a single row, which does not tell the step between rows")
            rows = scan.between(newest, newest.time - (count - 1) * step, newest.time + horizon * step)
    except (pa.ArrowException, OSError) as error:
        raise NotStreamedError(f"it cannot be read in parts ({error})") from error
    note = None
    if newest.newer and recipe.kind == "bars":
        note = f"the newest window ends at {iso(newest.time)}: of the {newest.newer} rows after it, no {needed} are unbroken"
    return Tail(Columns.of_table(rows), count - recipe.lookback, newest.length - count, note)


class _Newest(NamedTuple):
    time: int  # of the window's last row
    length: int  # rows of its segment up to it
    newer: int  # rows of the file after it
    spans: list[tuple[int, int, int]]  # row group, first and last time in it


class _Scan:
    """A parquet file in batches, restricted to the recipe's symbol if it has one."""

    def __init__(self, file: pq.ParquetFile, recipe: BarsRecipe | TableRecipe) -> None:
        self._file, self._recipe = file, recipe
        self._symbols: set[str | None] = set()
        names = file.schema_arrow.names
        by_lower = {name.strip().lower(): name for name in names}
        if recipe.kind == "bars":
            found = {role: next((by_lower[name] for name in usual if name in by_lower), "") for role, usual in NAMES.items()}
            self._time, self._symbol, self._values = found["timestamp"], found["symbol"], [found[role] for role in (*PRICES, "volume")]
        else:
            self._time, self._symbol, self._values = recipe.time, "", [recipe.target, *recipe.observed, *recipe.known]
        if not {self._time, *self._values} <= set(names) or len(by_lower) < len(names):
            raise NotStreamedError("it lacks columns, or has some twice")

    def newest(self, step: int, needed: int) -> _Newest:
        """Find the last row that ends `needed` unbroken ones; a missing value breaks them, and is checked for where allowed."""
        checked = self._values if self._recipe.kind == "table" or self._recipe.missing == "drop" else []
        run, previous, was_whole = 0, None, True
        found: tuple[int, int] | None = None
        newer, spans = 0, []
        for group in range(self._file.num_row_groups):
            for table, times in self._batches(group, checked):
                self._refuse_second_symbol(table)
                whole = np.ones(len(times), bool)
                for name in checked:
                    whole &= np.isfinite(numbers(Columns.of_table(table), name))
                gaps = np.diff(times, prepend=times[0] - step - 1 if previous is None else previous)
                if (gaps <= 0).any():
                    raise NotStreamedError("its times do not increase from row to row")
                before = np.r_[was_whole, whole[:-1]]
                if self._recipe.missing == "refuse" and (whole & ~before).any():
                    raise NotStreamedError("a value is missing before the newest ones")
                index = np.arange(len(times))
                begin = np.maximum.accumulate(np.where((gaps == step) & whole & before, -run, index))  # where each row's run began
                lengths = np.where(whole, index - begin + 1, 0)
                ready = np.flatnonzero(lengths >= needed)
                newer += len(times)
                if len(ready):
                    found, newer = (int(times[ready[-1]]), int(lengths[ready[-1]])), len(times) - 1 - int(ready[-1])
                run, previous, was_whole = int(lengths[-1]), int(times[-1]), bool(whole[-1])
                spans.append((group, int(times[0]), previous))
        if found is None:
            raise NotStreamedError(f"no {needed} rows in it are unbroken")
        return _Newest(*found, newer, spans)

    def _refuse_second_symbol(self, table: pa.Table) -> None:
        """Refuse a file of two symbols where none is chosen: times alone do not show where a contract ends."""
        if self._symbol and self._recipe.kind == "bars" and self._recipe.symbol is None:
            self._symbols |= set(Columns.of_table(table).whole(self._symbol).cast(pa.string()).unique().to_pylist())
            if len(self._symbols) > 1:
                raise NotStreamedError("it holds several symbols")

    def between(self, newest: _Newest, first: int, last: int) -> pa.Table:
        """Read the rows from time `first` to `last`, both included."""
        groups = sorted({group for group, begin, end in newest.spans if begin <= last and first <= end})
        parts = [
            table.filter(pa.array((first <= times) & (times <= last)))
            for group in groups
            for table, times in self._batches(group, self._values)
        ]
        return pa.concat_tables(part for part in parts if len(part))

    def _batches(self, group: int, columns: list[str]) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Read columns of a row group, and the times."""
        recipe = self._recipe
        wanted = [self._time, *filter(None, [self._symbol]), *columns]
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=wanted):
            table = pa.Table.from_batches([batch])
            if recipe.kind == "bars" and recipe.symbol is not None and self._symbol:
                import pyarrow.compute as pc

                table = table.filter(pc.equal(Columns.of_table(table).whole(self._symbol).cast(pa.string()), recipe.symbol))
            if len(table):
                yield table, nanoseconds(Columns.of_table(table), self._time, recipe.time_zone, refuse_naive=recipe.kind == "bars")[0]
