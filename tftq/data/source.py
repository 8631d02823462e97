"""What a reader of bars or tables hands to the split: rows, windows and the target, whatever they came from."""

from dataclasses import dataclass

import numpy as np
import torch

from tftq.data.columns import Inputs
from tftq.data.segments import Needs, Segment
from tftq.data.windows import Target


@dataclass(frozen=True)
class Source:
    """Rows ready for windows.

    Args:
        inputs: the columns and the shape of a window.
        rows: float32 [rows, history columns], raw.
        times: int64 nanoseconds UTC [rows].
        starts: int64 [windows], the row of each window's first history bar.
        target: what to forecast.
        notes: what a user should know.
    """

    inputs: Inputs
    rows: torch.Tensor
    times: torch.Tensor
    starts: torch.Tensor
    target: Target
    notes: list[str]


def window_starts(segments: list[Segment], needs: Needs) -> torch.Tensor:
    """The row of the first history bar of every window of the segments, int64 [windows]."""
    ranges = [np.arange(segment.start + needs.warmup, segment.stop - needs.lookback - needs.horizon + 1) for segment in segments]
    return torch.from_numpy(np.concatenate(ranges))
