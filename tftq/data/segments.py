"""Segments: runs of rows at the usual step, of one series, with nothing missing; every window lies within one."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tftq.data.files import duration
from tftq.data.rows import Rows
from tftq.errors import DataError


@dataclass(frozen=True)
class Segment:
    """Rows `start` to `stop` (exclusive) of one unbroken run."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Needs(NamedTuple):
    """The rows a window needs: those before it that only feed features, its history, and its target."""

    warmup: int
    lookback: int
    horizon: int

    @property
    def rows(self) -> int:
        """Count the unbroken rows of one window."""
        return self.warmup + self.lookback + self.horizon

    def windows(self, segments: list[Segment]) -> int:
        """Count the windows of the segments."""
        return sum(max(0, len(segment) - self.rows + 1) for segment in segments)


def usual_step(rows: Rows) -> int:
    """Find the most frequent time step between rows, in nanoseconds.

    Raises:
        DataError: no series has two rows.
    """
    steps = np.diff(rows.times)[np.diff(rows.series) == 0]
    if len(steps) == 0:
        raise DataError(f"{', '.join(rows.names)}: one row each; a series needs at least two rows")
    values, counts = np.unique(steps, return_counts=True)
    return int(values[counts.argmax()])


def cut(rows: Rows, step: int, keep_broken: bool = False) -> list[Segment]:
    """Cut rows wherever the step differs from `step`, the series changes, or a value is missing.

    Args:
        rows: rows in order.
        step: the usual step in nanoseconds.
        keep_broken: whether rows with a missing value count as complete, to measure how many windows they cost.

    Returns:
        The segments in order, including those of one row.
    """
    breaks = (np.diff(rows.times) != step) | (np.diff(rows.series) != 0)
    whole = np.ones(len(rows), bool) if keep_broken else ~rows.broken
    starts = whole & np.r_[True, breaks | ~whole[:-1]]
    stops = whole & np.r_[breaks | ~whole[1:], True]
    return [Segment(int(a), int(b) + 1) for a, b in zip(np.flatnonzero(starts), np.flatnonzero(stops), strict=True)]


def usable(rows: Rows, needs: Needs) -> tuple[list[Segment], list[str]]:
    """Select the segments long enough for a window.

    Args:
        rows: rows in order.
        needs: the rows of one segment that a window needs.

    Returns:
        The segments, and notes on gaps, on segments too short, and on windows lost to missing values.

    Raises:
        DataError: no segment is long enough.
    """
    step = usual_step(rows)
    segments = cut(rows, step)
    long_enough = [segment for segment in segments if len(segment) >= needs.rows]
    if not long_enough:
        longest = max(segments, key=len, default=Segment(0, 0))
        raise DataError(
            f"series {rows.names[rows.series[longest.start]]}: {needs.rows} needed, {len(longest)} found: rows for one window (warm-up "
            f"{needs.warmup} + lookback {needs.lookback} + horizon {needs.horizon}) in the longest of {len(segments)} unbroken segments at "
            f"steps of {duration(step)}; give more rows or a shorter lookback, horizon or warm-up"
        )
    notes = _gaps(rows, step)
    if len(long_enough) < len(segments):
        short = [len(segment) for segment in segments if len(segment) < needs.rows]
        notes.append(
            f"{len(short)} of {len(segments)} segments ({sum(short)} of {len(rows)} rows) are shorter than the {needs.rows} rows "
            "that a window needs and give none"
        )
    if rows.broken.any():
        lost = needs.windows(cut(rows, step, keep_broken=True)) - needs.windows(segments)
        notes.append(f"{lost} windows left out because they touch a missing value")
    return long_enough, notes


def _gaps(rows: Rows, step: int) -> list[str]:
    steps = np.diff(rows.times)[np.diff(rows.series) == 0]
    gaps = Counter(int(gap) for gap in steps[steps != step])
    if not gaps:
        return []
    listed = ", ".join(f"{count} of {duration(gap)}" for gap, count in gaps.most_common(4))
    rest = f" and {len(gaps) - 4} other lengths" if len(gaps) > 4 else ""
    return [f"cut at {gaps.total()} steps other than {duration(step)}: {listed}{rest}"]
