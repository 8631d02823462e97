"""Price bars under any of their usual names, types and time zones, checked and in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS, MEMORY, WIDTH, feature_rows
from tftq.data.files import Columns, iso, nanoseconds, numbers, read_file
from tftq.data.rows import Policy, RowOrder, Rows
from tftq.data.segments import Needs, Segment, usable
from tftq.data.source import Keep, Source, Tail, in_memory, window_starts
from tftq.data.windows import LogReturn
from tftq.errors import DataError
from tftq.spec.inputs import Column, Inputs

if TYPE_CHECKING:
    from tftq.recipe.schema import BarsRecipe

PRICES = ("open", "high", "low", "close")
# The usual names of each column, in any case; where a file has several of them, the first listed is taken.
NAMES: dict[str, tuple[str, ...]] = {
    "timestamp": ("ts_event", "timestamp", "datetime", "date_time", "open_time", "time", "date", "ts", "t", "index", "__index_level_0__"),
    "open": ("open", "open_price", "o"),
    "high": ("high", "high_price", "h"),
    "low": ("low", "low_price", "l"),
    "close": ("close", "close_price", "last", "c"),
    "volume": ("volume", "vol", "v"),
    "symbol": ("symbol", "ticker", "contract", "instrument", "raw_symbol", "sym"),
}
BLOCK = 4096  # bars whose features are computed at a time
FIXED_POINT = 1e-9  # the unit of integer prices in market data feeds
FIXED_POINT_FROM = 1e8  # integer prices above this are in that unit: 0.1 and up


def read_bars(
    path: Path | str,
    symbol: str | None = None,
    time_zone: str | None = None,
    duplicates: Policy = "refuse",
    missing: Policy = "refuse",
) -> Rows:
    """Read bars from a parquet or CSV file.

    Args:
        path: the file.
        symbol: the contract to keep; None keeps all of them, as series of their own.
        time_zone: the zone of times that carry none.
        duplicates: `drop` drops exact copies of rows.
        missing: `drop` marks bars with a missing value as broken.

    Returns:
        Rows with the columns open, high, low, close and volume, sorted by contract and time.

    Raises:
        DataError: a missing column, symbol or value, a duplicate timestamp, or prices that cannot be.
    """
    return bars_of(read_file(path), path, symbol, time_zone, duplicates, missing)


def bars_of(
    file: Columns,
    path: Path | str,
    symbol: str | None = None,
    time_zone: str | None = None,
    duplicates: Policy = "refuse",
    missing: Policy = "refuse",
    fixed_point: bool | None = None,
) -> Rows:
    """Build bars from columns that were read already.

    Args:
        file: the columns.
        path: their file; the name of a series without a symbol.
        symbol, time_zone, duplicates, missing: see `read_bars`.
        fixed_point: whether prices are whole numbers in units of `FIXED_POINT`; None: decided by whether they are whole and large.

    Returns, raises: as `read_bars`.
    """
    found, notes = find_columns(file.names, path)
    times, time_notes = nanoseconds(file, found["timestamp"], time_zone, refuse_naive=True)
    series, names = _series(file, found.get("symbol"), Path(path))
    columns = {name: numbers(file, found[name]) for name in (*PRICES, "volume")}
    if fixed_point is None:
        whole = all(pa.types.is_integer(file.type(found[name])) for name in PRICES)
        fixed_point = whole and bool(np.nanmedian(columns["close"]) >= FIXED_POINT_FROM)
    if fixed_point:
        for name in PRICES:
            if len(broken := columns[name][columns[name] % 1 > 0]):
                raise DataError(
                    f"{name} is {broken[0]:.10g}; allowed, as before: whole numbers, which are prices in units of {FIXED_POINT:g}"
                )
        columns |= {name: _fixed_point(columns[name]) for name in PRICES}
        notes.append(f"integer prices read as fixed-point numbers in units of {FIXED_POINT:g}")
    kept = np.ones(len(times), bool)
    if symbol is not None:
        if symbol not in names:
            raise DataError(f"data.symbol: no {symbol} in {path}; it has {', '.join(names)}")
        kept = series == names.index(symbol)  # errors in other contracts do not concern the user
        series, names = np.zeros(len(times), np.int64), (symbol,)
    _check_prices(kept, times, series, names, columns)
    order = RowOrder(kept, times, series, names, duplicates)
    for name in columns:
        columns[name] = order.column(name, columns[name])
    rows = order.rows(columns, missing)
    if len(names) > 1:
        notes.append(f"{len(names)} contracts, each a series of its own (data.symbol takes one): {', '.join(names)}")
    return replace(rows, notes=notes + time_notes + rows.notes, fixed_point=fixed_point)


def load_bars(recipe: BarsRecipe, keep: Keep = in_memory, *, horizon: int | None = None, tail: Tail | None = None) -> Source:
    """Read bars and compute the features of every segment that is long enough for a window.

    Args:
        recipe: the recipe's `data` part.
        keep: stores the rows.
        horizon: bars that a window needs after its history; None: the recipe's.
        tail: the rows of the newest window instead of the whole file.

    Returns:
        Rows of the long enough segments, their windows, and the cumulative log return as the target.

    Raises:
        DataError: a file, column or value that cannot be used.
    """
    file = read_file(recipe.path) if tail is None else tail.file
    bars = bars_of(file, recipe.path, recipe.symbol, recipe.time_zone, recipe.duplicates, recipe.missing)
    warmup, earlier = (recipe.warmup, 0) if tail is None else (tail.context, tail.earlier)
    needs = Needs(warmup, recipe.lookback, recipe.horizon if horizon is None else horizon)
    segments, notes = usable(bars, needs)
    if warmup < MEMORY - 1:
        notes.append(f"data.warmup {warmup} is below {MEMORY - 1}: a segment's first features see a market that stood still before it")
    rows = keep(sum(map(len, segments)), WIDTH, _feature_blocks(bars, segments, recipe.time_zone, earlier))
    stops = np.cumsum([len(segment) for segment in segments])
    packed = [Segment(int(stop) - len(segment), int(stop)) for segment, stop in zip(segments, stops, strict=True)]
    observed = tuple(Column(name, "observed") for name in BAR_COLUMNS)
    known = tuple(Column(name, "known") for name in CLOCK_COLUMNS)
    return Source(
        inputs=Inputs(observed + known, recipe.lookback, needs.horizon),
        rows=rows,
        times=_joined(bars.times, segments),
        starts=window_starts(packed, needs),
        target=LogReturn(_joined(bars.columns["close"], segments)),
        notes=bars.notes + notes,
    )


def _feature_blocks(bars: Rows, segments: list[Segment], time_zone: str | None, earlier: int) -> Iterator[np.ndarray]:
    """Compute the features of the segments' bars, float32 [at most BLOCK, WIDTH] each; `earlier` bars of a segment lie before those given.

    A block is computed from its own bars and the few before them that its features look at: no bit differs from those of the whole
    segment, and its intermediates take 22 MB, however long the segment. Half as many bars at a time take a fifth more of the
    processor's time, since each step of the computation starts more often; all of 32,768 at once take half as much again.
    """
    for segment in segments:
        for start in range(segment.start, segment.stop, BLOCK):
            stop = min(start + BLOCK, segment.stop)
            seen = max(segment.start, start - MEMORY + 1)
            columns = {name: column[seen:stop] for name, column in bars.columns.items()}
            yield feature_rows(columns, bars.times[seen:stop], stop - start, age=earlier + seen - segment.start, time_zone=time_zone)


def _joined(values: np.ndarray, segments: list[Segment]) -> np.ndarray:
    return np.concatenate([values[segment.start : segment.stop] for segment in segments])


def find_columns(columns: list[str], path: Path | str) -> tuple[dict[str, str], list[str]]:
    """Find the name of each column by its content, with notes.

    Args:
        columns: the names in a file.
        path: the file, for messages.

    Raises:
        DataError: a column that is missing, or that two names match.
    """
    by_lower: dict[str, list[str]] = {}
    for name in columns:
        by_lower.setdefault(name.strip().lower(), []).append(name)
    found: dict[str, str] = {}
    absent = []
    for role, names in NAMES.items():
        present = [name for name in names if name in by_lower]
        if present and len(by_lower[present[0]]) > 1:
            raise DataError(f"{path}: {' and '.join(by_lower[present[0]])} both name the column {role}; keep one")
        if present:
            found[role] = by_lower[present[0]][0]
        elif role != "symbol":
            absent.append(f"no column for {role} (looked for {', '.join(names)}, in any case)")
    if absent:
        raise DataError(f"{path}: {'; '.join(absent)}; the file has {', '.join(columns)}; rename its columns")
    unused = [name for name in columns if name not in found.values()]
    return found, [f"columns not used: {', '.join(unused)}"] if unused else []


def _series(file: Columns, column: str | None, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    if column is None:
        return np.zeros(file.rows, np.int64), (path.name.split(".")[0],)
    try:
        chunks = list(file.texts(column))
    except pa.ArrowException as error:
        raise DataError(f"column {column!r} holds {file.type(column)}; a symbol is text or a whole number") from error
    if count := sum(chunk.null_count for chunk in chunks):
        row = int(np.concatenate([np.isnan(chunk.indices.to_numpy(zero_copy_only=False)) for chunk in chunks]).argmax())
        raise DataError(f"column {column!r}: {count} missing, first in row {row}; every bar needs its symbol")
    values = [chunk.dictionary.to_pylist() for chunk in chunks]
    names = sorted({name for some in values for name in some})
    ranks = [np.array([names.index(name) for name in some], np.int64) for some in values]
    return np.concatenate([rank[chunk.indices.to_numpy()] for rank, chunk in zip(ranks, chunks, strict=True)]), tuple(names)


def _fixed_point(values: np.ndarray) -> np.ndarray:
    # Divided, not multiplied by 1e-9, which no float holds exactly: 1676.5 must come out as 1676.5.
    return values / 1e9


def _check_prices(kept: np.ndarray, times: np.ndarray, series: np.ndarray, names: tuple[str, ...], columns: dict[str, np.ndarray]) -> None:
    high, low = columns["high"], columns["low"]
    top, bottom = np.fmax(columns["open"], columns["close"]), np.fmin(columns["open"], columns["close"])
    faults = {
        **{f"{name} is not above zero": columns[name] <= 0 for name in PRICES},
        "volume is below zero": columns["volume"] < 0,
        "high is below low": high < low,
        "open or close is outside low to high": (top > high) | (bottom < low),
    }
    found = []
    for fault, anywhere in faults.items():
        where = anywhere & kept
        if where.any():
            row = int(where.argmax())
            values = ", ".join(f"{name} {column[row]:g}" for name, column in columns.items())
            found.append(f"{fault} in {int(where.sum())} bars, first in row {row}, {iso(times[row])} of {names[series[row]]} ({values})")
    if found:
        raise DataError("; ".join(found) + "; mend or leave out these bars")
