"""Read the bars to answer, from a file or line by line, with the same checks."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa

from tftq.data.bars import FIXED_POINT, bars_of, find_columns, read_bars
from tftq.data.features.online import VALUES
from tftq.data.features.table import MEMORY
from tftq.data.files import Columns, duration, iso
from tftq.data.rows import Rows
from tftq.data.segments import cut, usual_step
from tftq.ensemble.market import CLOSE, Bar
from tftq.errors import DataError, EnsembleError

if TYPE_CHECKING:
    from tftq.ensemble.recipe import BarsToAnswer

SOURCE = "standard input"
NEARER_IN_ANOTHER_UNIT = -np.log(FIXED_POINT) / 2  # of log prices from bar to bar
STEPS_TO_FIND = 10  # gaps of a feed, at least one of which must be of the members' step
LINES = "give JSON objects, or CSV below a line with the names of its columns, after a restart too"
NO_FEED = 100  # consecutive lines without a bar: no more are left out, whatever the recipe has, or a run would continue without answers
BYTE_ORDER_MARK = "\ufeff"  # before the first line, where a feed was written as UTF-8 by some tools


@dataclass
class Feed:
    """Bars in order of time.

    A file of one segment with bars 0 to 199, `data.last: 5` and a lookback of 8, where features look at 51 bars:
        since  the time of 195: 195 to 199 are answered
        bars   188 to 199, since the answer at 195 looks back to 188
        before 138 to 187, since the features of 188 look back to 138
        age    188: the number of bars of the segment before 188, the first of `bars`

    Attributes:
        bars: the bars, those before the first answer included.
        since: the first bar that is answered, in nanoseconds UTC; None: every one.
        before: bars of the segment before the first of `bars` that its features depend on.
        age: bars of that segment before the first of `bars`.
        notes: notes for the user.
        counts: why bars were left out -> how many; complete at the end of the feed.
        fixed_point: whether prices of lines are whole numbers of a small unit, as the first bar says; None before it.
    """

    bars: Iterator[Bar]
    since: int | None = None
    before: list[Bar] = field(default_factory=list)
    age: int = 0
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fixed_point: bool | None = None


def bars_of_file(recipe: BarsToAnswer, step: int, lookback: int, trained_until: int | None, after: int | None = None) -> Feed:
    """Read the bars of a parquet or CSV file.

    Args:
        recipe: the recipe's `data` part.
        step: of the members, between bars, in nanoseconds.
        lookback: the longest lookback of any member: so many bars come before the first answer, where the segment has them.
        trained_until: the time of the last bar that any member was trained on, for `data.unseen`.
        after: the newest bar that was answered before a restart: every later one is answered, regardless of `data.last` and `data.unseen`.

    Raises:
        DataError: a file, column or value that cannot be used, or no bar.
        EnsembleError: bars at another step.
    """
    rows = read_bars(recipe.path, recipe.symbol, recipe.time_zone, recipe.duplicates, recipe.missing)
    found = usual_step(rows)
    if found != step:
        raise EnsembleError(f"{recipe.path}: bars are {duration(found)} apart, the members want steps of {duration(step)}; give such bars")
    whole = np.flatnonzero(~rows.broken)
    if not len(whole):
        raise DataError(f"{recipe.path}: each of its {len(rows)} bars lacks a value; give bars with {', '.join(VALUES)}")
    if (np.diff(rows.times[whole]) <= 0).any():
        raise DataError(_several_contracts(recipe.path, rows.names))
    notes = list(rows.notes)
    if after is not None:
        return Feed(_of_rows(rows, whole[rows.times[whole] > after]), notes=notes)
    since = None
    if recipe.last is not None:
        since = int(rows.times[whole[-recipe.last :][0]])
    if recipe.unseen:
        if trained_until is None:
            raise EnsembleError(
                "data.unseen: no member's file says when its training ended; export them again, or name the bars by data.last"
            )
        later = rows.times[whole] > trained_until
        if not later.any():
            raise DataError(
                f"{recipe.path}: no bar lies after {iso(trained_until)}, the last that a member was trained on; give later bars"
            )
        since = int(rows.times[whole][later][0])
        notes.append(f"answers begin at {iso(since)}, after the last bar that a member was trained on")
    if since is None:
        return Feed(_of_rows(rows, whole), notes=notes)
    first = int(np.searchsorted(rows.times[whole], since))
    row = int(whole[first])
    segment = next(segment for segment in cut(rows, step) if segment.start <= row < segment.stop)
    start = max(segment.start, row - lookback + 1)
    before = list(_of_rows(rows, np.arange(max(segment.start, start - MEMORY + 1), start)))
    return Feed(_of_rows(rows, whole[whole >= start]), since, before, start - segment.start, notes)


def _several_contracts(source: Path | str, names: Iterable[str]) -> str:
    return f"{source} holds several contracts at the same times; choose one with data.symbol=... ({', '.join(names)})"


def _of_rows(rows: Rows, which: np.ndarray) -> Iterator[Bar]:
    columns = [rows.columns[name] for name in VALUES]
    for row in which:
        yield Bar(int(rows.times[row]), rows.names[rows.series[row]], np.array([column[row] for column in columns]))


def bars_of_lines(lines: Iterable[str], recipe: BarsToAnswer, step: int, report: Callable[[str], None]) -> Feed:
    """Read bars from lines, each a JSON object, or a CSV line below one with the names of the columns.

    Args:
        lines: as they arrive.
        recipe: the recipe's `data` part.
        step: of the members, between bars, in nanoseconds.
        report: called with a message about each line that is left out, and about the first gap.

    Raises:
        DataError: (as bars are taken) an impossible bar, where that is refused, with its line.
        EnsembleError: (as bars are taken) bars at another step from the first on.
    """
    feed = Feed(iter(()))
    feed.bars = _Lines(recipe, step, report, feed).bars(lines)
    return feed


class _Lines:
    """Turns lines into bars, one at a time."""

    def __init__(self, recipe: BarsToAnswer, step: int, report: Callable[[str], None], feed: Feed) -> None:
        self._recipe, self._step, self._report, self._feed = recipe, step, report, feed
        self._header: str | None = None  # of CSV; empty where lines are JSON; None before the first line
        self._noted: set[str] = set()
        self._last: Bar | None = None  # the newest, though it may have been left out
        self._ended: dict[str, None] = {}  # contracts that another one followed
        self._given: Bar | None = None  # the newest that was not
        self._gaps: int | None = 0  # of another step so far; None once bars came at the members'
        self._gap_reported = False

    def bars(self, lines: Iterable[str]) -> Iterator[Bar]:
        unread = 0  # consecutive lines without a bar
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if self._header is None:
                line = line.removeprefix(BYTE_ORDER_MARK)
            table = None
            try:
                table = self._table(line)
                bar = None if table is None else self._bar(table)
            except (ValueError, OverflowError, RecursionError, pa.ArrowException) as error:  # of our checks, of JSON, of Arrow
                if self._recipe.bad_lines == "refuse":
                    self._refuse(number, error)
                self._feed.counts["bad lines"] += 1
                self._report(f"line {number}: left out: {error}")
                unread = unread + 1 if table is None else 0
                if unread == NO_FEED:
                    raise DataError(f"{SOURCE}, line {number}: {NO_FEED} lines in a row that say no bar; {LINES}") from error
                continue
            unread = 0
            if bar is not None:
                self._compare_steps(number, bar)
                self._given = bar
                yield bar

    def _compare_steps(self, number: int, bar: Bar) -> None:
        """Report the first gap, and refuse a feed of gaps alone: every bar would begin a segment, and no member would ever answer."""
        before = self._given
        if before is None or bar.series != before.series:
            return
        found, wanted = duration(bar.time - before.time), duration(self._step)
        if bar.time - before.time == self._step:
            self._gaps = None
            return
        if not self._gap_reported:
            self._gap_reported = True
            times = f"{iso(before.time)} and {iso(bar.time)}"
            self._report(f"the bars of {times} are {found} apart, the members want {wanted}; they warm up anew after every such gap")
        if self._gaps is not None:
            self._gaps += 1
            if self._gaps == STEPS_TO_FIND:
                raise EnsembleError(
                    f"{SOURCE}, line {number}: none of the first {STEPS_TO_FIND} bars came {wanted} after the one before, as the members "
                    f"want, the last {found}; give such bars, their times whole"
                )

    def _refuse(self, number: int, error: Exception) -> NoReturn:
        advice = "set data.bad_lines: skip to leave such lines out, and continue with --resume"
        raise DataError(f"{SOURCE}, line {number}: {error}; {advice}") from error

    def _bar(self, table: pa.Table) -> Bar | None:
        """Make the bar of a line, or None where the recipe leaves it out."""
        recipe, counts, fixed_point = self._recipe, self._feed.counts, self._feed.fixed_point
        rows = bars_of(Columns.of_table(table), SOURCE, time_zone=recipe.time_zone, missing="drop", fixed_point=fixed_point)
        for note in rows.notes:
            if "missing" not in note and note not in self._noted:
                self._noted.add(note)
                self._report(note)
        series = rows.names[0]
        if recipe.symbol is not None and series == SOURCE:
            raise DataError(f"no column for the symbol, and data.symbol wants {recipe.symbol}")
        if recipe.symbol not in (None, series):
            counts["bars of other symbols"] += 1
            return None
        bar = Bar(int(rows.times[0]), series, np.array([rows.columns[name][0] for name in VALUES]))
        last = self._last
        if last is not None and bar.series != last.series:
            if bar.time <= last.time or bar.series in self._ended:
                raise DataError(_several_contracts(SOURCE, {**self._ended, last.series: None, bar.series: None}))
            self._ended[last.series] = None
        if last is not None and bar.time <= last.time:
            same = bar.time == last.time and bar.series == last.series
            if same and recipe.duplicates == "drop" and np.array_equal(bar.values, last.values, equal_nan=True):
                counts["exact copies of the bar before"] += 1
                return None
            raise DataError(f"{'a second bar' if same else 'a bar'} of {iso(bar.time)}, and the one before is of {iso(last.time)}")
        if last is not None and bar.series == last.series and abs(np.log(bar.values[CLOSE] / last.values[CLOSE])) > NEARER_IN_ANOTHER_UNIT:
            read = f"as whole numbers in units of {FIXED_POINT:g}" if rows.fixed_point else "as they are"
            moved = f"close moves from {last.values[CLOSE]:g} to {bar.values[CLOSE]:g}"
            raise DataError(f"{moved}: prices are read {read}, as the first bar's were; give all in one unit")
        if rows.broken[0]:
            absent = ", ".join(name for name, value in zip(VALUES, bar.values, strict=True) if not np.isfinite(value))
            if recipe.missing == "refuse":
                raise DataError(f"{absent} missing at {iso(bar.time)}")
            self._last = bar
            counts["bars with a missing value"] += 1
            return None
        self._last, self._feed.fixed_point = bar, rows.fixed_point
        return bar

    def _table(self, line: str) -> pa.Table | None:
        """Make a table of one row, or None where the line names the columns."""
        if self._header:
            table = _csv(f"{self._header}\n{line}")
            kinds = [one.with_type(pa.float64()) if pa.types.is_null(one.type) else one for one in table.schema]  # null: an empty field
            return table.cast(pa.schema(kinds))
        if self._header is None and not line.lstrip().startswith("{"):
            try:
                find_columns(_csv(f"{line}\n").column_names, SOURCE)
            except (DataError, pa.ArrowException) as error:
                raise DataError(f"found {line.strip()[:40]!r}; allowed: a JSON object, or the names of CSV columns ({error})") from error
            self._header = line.rstrip("\r\n")
            return None
        values = json.loads(line)
        if not isinstance(values, dict):
            raise DataError(f"found {line.strip()[:40]!r}; allowed: a JSON object, as the first line was one")
        self._header = ""
        return pa.table({name: pa.array([value], pa.float64() if value is None else None) for name, value in values.items()})


def _csv(text: str) -> pa.Table:
    import pyarrow.csv

    return pyarrow.csv.read_csv(io.BytesIO(text.encode()), read_options=pyarrow.csv.ReadOptions(use_threads=False))
