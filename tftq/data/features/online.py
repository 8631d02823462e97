"""Compute features of bars one at a time, as they arrive."""

import numpy as np

from tftq.data.features.table import MEMORY, feature_rows

VALUES = ("open", "high", "low", "close", "volume")  # of a bar, in this order


class OnlineFeatures:
    """The features of each new bar of one segment, bit-equal to those computed from the whole segment.

    Holds no more bars than a feature needs.

    Args:
        time_zone: whose clock the calendar columns show; None is UTC.

    Attributes:
        count: bars of the segment so far.
    """

    def __init__(self, time_zone: str | None) -> None:
        self._time_zone = time_zone
        self._bars = np.empty((0, len(VALUES)))  # [bars, values], the newest last
        self.count = 0

    def begin(self, bars: np.ndarray | None = None, count: int = 0) -> None:
        """Begin a new segment, or continue one.

        Args:
            bars: its newest bars, float64 [at most MEMORY, values]; None at its beginning.
            count: its bars so far, those included.
        """
        self._bars = np.empty((0, len(VALUES))) if bars is None else bars
        self.count = count

    @property
    def bars(self) -> np.ndarray:
        """Return the bars that are held, float64 [at most MEMORY, values]: `begin` continues from them and `count`."""
        return self._bars

    def push(self, time: int, values: np.ndarray) -> np.ndarray:
        """Add the next bar.

        Args:
            time: nanoseconds UTC.
            values: float64 [values].

        Returns:
            Its features, float32 [WIDTH].
        """
        self._bars = np.concatenate([self._bars[-(MEMORY - 1) :], values[None]])
        self.count += 1
        columns = dict(zip(VALUES, np.ascontiguousarray(self._bars.T), strict=True))
        times = np.array([time])
        return feature_rows(columns, times, 1, age=self.count - len(self._bars), time_zone=self._time_zone)[0]
