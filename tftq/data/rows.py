"""Rows sorted by series and time, each time once, missing values marked; shared by bars and tables."""

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
        broken: which rows have a value missing [rows]; no window may use them.
        notes: notes for the user on how they were read.
        fixed_point: whether prices were whole numbers of a small unit.
    """

    times: np.ndarray
    series: np.ndarray
    names: tuple[str, ...]
    columns: dict[str, np.ndarray]
    broken: np.ndarray
    notes: list[str] = field(default_factory=list)
    fixed_point: bool = False

    def __len__(self) -> int:
        return len(self.times)


class RowOrder:
    """Sort a file's columns into the order of its rows, one after the other, so that no more than one is held twice.

    Repeated times and missing values are refused or dropped, always with a count. Call `column` for every column, then `rows`.

    Args:
        kept: which rows of the file to use, bool [rows]; the others are ignored.
        times: int64 nanoseconds UTC [rows], as in the file.
        series: index of each row's series in `names` [rows].
        names: the series.
        duplicates: `drop` keeps the first of rows that are equal in every column; differing ones are always refused.

    Raises:
        DataError: a duplicate timestamp while that is refused.
    """

    def __init__(self, kept: np.ndarray, times: np.ndarray, series: np.ndarray, names: tuple[str, ...], duplicates: Policy) -> None:
        order = np.lexsort((np.arange(len(times)), times, series))
        order = order[kept[order]]
        repeats = 1 + np.flatnonzero((np.diff(times[order]) == 0) & (np.diff(series[order]) == 0))
        self._firsts, self._copies = order[repeats - 1], order[repeats]
        self._differs = np.zeros(len(repeats), bool)
        self._faults: list[str] = []
        self._order = np.delete(order, repeats) if len(repeats) else order
        self._times = times
        self._series = series
        self._names = names
        self._broken = np.zeros(len(self._order), bool)
        self._notes: list[str] = []
        if len(repeats) and duplicates == "refuse":
            raise DataError(self._duplicates(np.arange(len(repeats)), "; set `data.duplicates: drop` to drop exact copies"))
        in_file = np.flatnonzero(kept)
        in_file = in_file[np.argsort(series[in_file], kind="stable")]  # each series on its own, in the order of the file
        disordered = int(((np.diff(times[in_file]) < 0) & (np.diff(series[in_file]) == 0)).sum())
        if disordered:
            self._notes.append(f"sorted by time: {disordered} rows lay before an earlier one")

    def __len__(self) -> int:
        return len(self._order)

    def column(self, name: str, values: np.ndarray) -> np.ndarray:
        """Sort a column into the order of the rows.

        Args:
            name: its name.
            values: float64 [rows], as in the file.

        Returns:
            float64 [rows in order].
        """
        one, other = values[self._firsts], values[self._copies]
        self._differs |= ~((one == other) | (np.isnan(one) & np.isnan(other)))
        ordered = values[self._order]
        absent = ~np.isfinite(ordered)
        if absent.any():
            row = self._order[absent].min()
            self._faults.append(
                f"column {name!r}: {int(absent.sum())} missing (NaN or infinite), first in row {row}, {iso(self._times[row])}"
            )
        self._broken |= absent
        return ordered

    def rows(self, columns: dict[str, np.ndarray], missing: Policy) -> Rows:
        """Return the rows in order.

        Args:
            columns: the sorted columns from `column` to keep.
            missing: `drop` marks rows with a missing value in any column as broken.

        Raises:
            DataError: rows of one time that differ, or a missing value while that is refused.
        """
        if self._differs.any():
            advice = ", with other values; data.duplicates: drop drops exact copies only, so mend the file"
            raise DataError(self._duplicates(np.flatnonzero(self._differs), advice))
        if self._faults and missing == "refuse":
            raise DataError("; ".join(self._faults) + "; set `data.missing: drop` to leave out the windows that touch them")
        dropped = [f"dropped {len(self._copies)} exact copies of rows"] if len(self._copies) else []
        notes = self._notes + dropped + [f"{fault}; left out" for fault in self._faults]
        return Rows(self._times[self._order], self._series[self._order], self._names, columns, self._broken, notes)

    def _duplicates(self, which: np.ndarray, advice: str) -> str:
        at = which[np.argmin(self._copies[which])]
        first, copy = self._firsts[at], self._copies[at]
        return (
            f"duplicate timestamp in {len(which)} rows, first in row {copy}: {iso(self._times[copy])} of "
            f"{self._names[self._series[copy]]} is in row {first} too{advice}"
        )
