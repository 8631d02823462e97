"""The result of a reader of bars or tables, as the split takes it: rows, windows and the target."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tftq.data.files import Columns
from tftq.data.segments import Needs, Segment
from tftq.data.windows import Target, nothing_to_release
from tftq.spec.inputs import Inputs

# How rows are kept that come in blocks: from their count, their width and the blocks, float32 [any, width], to float32 [count, width].
Keep = Callable[[int, int, Iterator[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Source:
    """Rows ready for windows.

    Args:
        inputs: the columns and the shape of a window.
        rows: float32 [rows, columns of a row], raw.
        times: int64 nanoseconds UTC [rows].
        starts: int64 [windows], the row of each window's first history bar.
        target: what to forecast.
        notes: what a user should know.
        release: lets go of pages of memory that reading rows has filled and that can be read from a file again.
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
        note: what a user should know, if anything.
    """

    file: Columns
    context: int
    earlier: int
    note: str | None


def in_memory(count: int, width: int, blocks: Iterator[np.ndarray]) -> np.ndarray:
    """Rows in an array of their own; a block that holds all of them is taken as it is."""
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
    """The row of the first history bar of every window of the segments, int64 [windows]."""
    ranges = [np.arange(segment.start + needs.warmup, segment.stop - needs.lookback - needs.horizon + 1) for segment in segments]
    return np.concatenate(ranges)
