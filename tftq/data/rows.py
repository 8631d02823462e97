"""Rows in order: sorted by series and time, each time once, what is missing known; the same for bars and tables."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tftq.data.files import iso
from tftq.errors import DataError

Policy = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Rows:
    """The rows of one or more series, sorted by series and then by time.

    Args:
        times: int64 nanoseconds UTC [rows].
        series: index of each row's series in `names` [rows].
        names: the series, such as contracts.
        columns: float64 [rows] each, by name.
        broken: which rows have a value missing [rows]; no window may touch them.
        notes: what a user should know of how they were read.
    """

    times: np.ndarray
    series: np.ndarray
    names: tuple[str, ...]
    columns: dict[str, np.ndarray]
    broken: np.ndarray
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.times)


def tidy_rows(
    kept: np.ndarray,
    times: np.ndarray,
    series: np.ndarray,
    names: tuple[str, ...],
    columns: dict[str, np.ndarray],
    duplicates: Policy,
    missing: Policy,
) -> Rows:
    """Sort rows, and refuse or drop repeated times and missing values, always with a count.

    Args:
        kept: which rows of the file are wanted, bool [rows]; the others are not looked at.
        times: int64 nanoseconds UTC [rows], as in the file.
        series: index of each row's series in `names` [rows].
        names: the series.
        columns: float64 [rows] each.
        duplicates: `drop` keeps the first of rows that are equal in every column; differing ones are always refused.
        missing: `drop` marks rows with a missing value as broken.

    Returns:
        The rows in order.

    Raises:
        DataError: a duplicate timestamp or a missing value that the recipe does not allow.
    """
    notes: list[str] = []
    order = np.lexsort((np.arange(len(times)), times, series))
    order = order[kept[order]]
    in_file = np.flatnonzero(kept)
    in_file = in_file[np.argsort(series[in_file], kind="stable")]  # each series on its own, in the order of the file
    disordered = int(((np.diff(times[in_file]) < 0) & (np.diff(series[in_file]) == 0)).sum())
    if disordered:
        notes.append(f"sorted by time: {disordered} rows lay before an earlier one")

    sorted_times, sorted_series = times[order], series[order]
    repeats = 1 + np.flatnonzero((np.diff(sorted_times) == 0) & (np.diff(sorted_series) == 0))
    if len(repeats):
        _check_duplicates(times, series, names, columns, order, repeats, duplicates)
        order = np.delete(order, repeats)
        notes.append(f"dropped {len(repeats)} exact copies of rows")

    broken = np.zeros(len(order), bool)
    faults = []
    for name, values in columns.items():
        absent = ~np.isfinite(values[order])
        if absent.any():
            row = order[absent].min()
            faults.append(f"column {name!r}: {int(absent.sum())} missing (NaN or infinite), first in row {row}, {iso(times[row])}")
        broken |= absent
    if faults and missing == "refuse":
        raise DataError("; ".join(faults) + "; set `data.missing: drop` to leave out the windows that touch them")
    notes += [f"{fault}; left out" for fault in faults]
    return Rows(times[order], series[order], names, {name: values[order] for name, values in columns.items()}, broken, notes)


def _check_duplicates(
    times: np.ndarray,
    series: np.ndarray,
    names: tuple[str, ...],
    columns: dict[str, np.ndarray],
    order: np.ndarray,
    repeats: np.ndarray,
    duplicates: Policy,
) -> None:
    firsts, copies = order[repeats - 1], order[repeats]
    differs = np.zeros(len(repeats), bool)
    for values in columns.values():
        differs |= ~((values[firsts] == values[copies]) | (np.isnan(values[firsts]) & np.isnan(values[copies])))
    if duplicates == "drop" and not differs.any():
        return
    which = np.flatnonzero(differs) if duplicates == "drop" else np.arange(len(repeats))
    at = which[np.argmin(copies[which])]
    raise DataError(
        f"duplicate timestamp in {len(which)} rows, first in row {copies[at]}: {iso(times[copies[at]])} of {names[series[copies[at]]]} "
        f"is in row {firsts[at]} too"
        + (", with other values; data.duplicates: drop drops exact copies only, so mend the file" if duplicates == "drop" else "")
        + ("; set `data.duplicates: drop` to drop exact copies" if duplicates == "refuse" else "")
    )
