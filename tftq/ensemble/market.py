"""The market at a bar: the features of the last bars of its segment, computed once for all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tftq.data.features.online import VALUES, OnlineFeatures
from tftq.data.features.table import MEMORY, clock_features
from tftq.ensemble.interface import COLUMNS

CLOSE = VALUES.index("close")


class Bar(NamedTuple):
    """One bar: its time, contract, open, high, low, close and volume, float64 [values]."""

    time: int
    series: str
    values: np.ndarray


class Market:
    """The newest bars of the current segment.

    A segment ends where `tftq.data.segments.cut` ends it: at another step than the usual one, another contract, or a bar left out.

    Args:
        step: between bars, in nanoseconds.
        time_zone: of the clock columns; None is UTC.
        depth: bars whose columns are kept, the longest lookback of any member.

    Attributes:
        time: of the newest bar, in nanoseconds UTC.
        segment: its index, counted from 0; -1 before the first bar.
        close: its price.
    """

    def __init__(self, step: int, time_zone: str | None, depth: int) -> None:
        self.step, self._time_zone, self._depth = step, time_zone, depth
        self._online = OnlineFeatures(time_zone)
        self._rows = np.empty((0, len(COLUMNS)), np.float32)  # [bars, columns], the newest last
        self._ahead = np.empty((0, 0), np.float32)
        self.time, self.series, self.segment, self.close = 0, "", -1, 0.0

    @property
    def age(self) -> int:
        """Return the number of bars of the segment so far."""
        return self._online.count

    def begin(self, bars: list[Bar], count: int) -> None:
        """Begin in the middle of a segment.

        Args:
            bars: its newest, as many as features need before the first that is pushed.
            count: its bars so far, those included.
        """
        self._online.begin(np.stack([bar.values for bar in bars])[1 - MEMORY :], count)
        self.time, self.series, self.segment = bars[-1].time, bars[-1].series, 0

    def push(self, bar: Bar) -> None:
        """Add the next bar, in the order of time."""
        if self.segment < 0 or bar.time - self.time != self.step or bar.series != self.series:
            self._online.begin()
            self._rows = self._rows[:0]
            self.segment += 1
        features = self._online.push(bar.time, bar.values)
        row = np.concatenate([features, bar.values.astype(np.float32)])[None]
        self._rows = np.concatenate([self._rows, row])[-self._depth :]
        self._ahead = np.empty((0, 0), np.float32)
        self.time, self.series, self.close = bar.time, bar.series, float(bar.values[CLOSE])

    def history(self, lookback: int) -> np.ndarray:
        """Return the newest bars' columns, float32 [at most lookback, columns], in the order of `COLUMNS`."""
        return self._rows[-lookback:]

    def future(self, horizon: int) -> np.ndarray:
        """Return the clock columns of the next steps, float32 [horizon, clock columns]."""
        ahead = self._ahead  # read once, since members run at the same time, and another may replace it by a shorter one
        if len(ahead) < horizon:
            times = self.time + self.step * np.arange(1, horizon + 1)
            ahead = self._ahead = clock_features(times, self._time_zone).astype(np.float32)
        return ahead[:horizon]

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, as arrays and numbers."""
        return {
            "rows": self._rows,
            "bars": self._online.bars,
            "count": self.age,
            "time": self.time,
            "series": self.series,
            "segment": self.segment,
            "close": self.close,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state` of the same step, time zone and depth."""
        self._rows = state["rows"]
        self._online.begin(state["bars"], int(state["count"]))
        self.time, self.series, self.segment = int(state["time"]), str(state["series"]), int(state["segment"])
        self.close = float(state["close"])
