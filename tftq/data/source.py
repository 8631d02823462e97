"""The result of a reader of bars or tables, the input of the split: rows, windows and the target."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tftq.data.files import Columns
from tftq.data.segments import Needs, Segment
from tftq.data.windows import Target, nothing_to_release
from tftq.spec.inputs import Inputs

# Stores rows that come in blocks: from their count, their width and the blocks, float32 [any, width], to float32 [count, width].
Keep = Callable[[int, int, Iterator[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Source:
    """Rows ready for windows.

    Args:
        inputs: the columns and the shape of a window.
        rows: float32 [rows, columns of a row], raw.
        times: int64 nanoseconds UTC [rows].
        starts: int64 [windows], the row of each window's first history bar.
        target: the target to forecast.
        notes: notes for the user.
        release: frees memory pages filled by reading rows that can be read from a file again.
    """

    inputs: Inputs
    rows: np.ndarray
    times: np.ndarray
    starts: np.ndarray
    target: Target
    notes: list[str]
    release: Callable[[], None] = nothing_to_release


@dataclass(frozen=True)
class Tail:
    """The rows that the newest window of a file needs, taken from its end.

    Args:
        file: their columns, as the file has them.
        context: rows before the window, which only feed features.
        earlier: rows of the window's segment before these.
        note: a note for the user, if any.
    """

    file: Columns
    context: int
    earlier: int
    note: str | None


def in_memory(count: int, width: int, blocks: Iterator[np.ndarray]) -> np.ndarray:
    """Copy rows into one array; a block that holds all of them is used without a copy."""
    first = next(blocks)
    if len(first) == count:
        return first
    rows, row = np.empty((count, width), np.float32), 0
    for block in chain([first], blocks):
        rows[row : row + len(block)] = block
        row += len(block)
    assert row == count
    return rows


def window_starts(segments: list[Segment], needs: Needs) -> np.ndarray:
    """Return the row of the first history bar of every window of the segments, int64 [windows]."""
    ranges = [np.arange(segment.start + needs.warmup, segment.stop - needs.lookback - needs.horizon + 1) for segment in segments]
    return np.concatenate(ranges)
