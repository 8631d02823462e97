"""Features of bars as they come are those of the whole segment, to the last bit."""

import numpy as np

from tests.data.helpers import bar_columns
from tftq.data.features.online import VALUES, OnlineFeatures
from tftq.data.features.table import MEMORY, WIDTH, feature_rows


def test_online_features_equal_those_of_the_whole_segment() -> None:
    time_zone = "America/Chicago"
    bars = bar_columns(200, seed=2)
    columns = {name: bars[name].astype(np.float64) for name in VALUES}
    whole = feature_rows(columns, bars["ts_event"], 200, age=0, time_zone=time_zone)
    online = OnlineFeatures(time_zone)
    values = np.stack([columns[name] for name in VALUES], axis=1)
    found = np.stack([online.push(int(time), row) for time, row in zip(bars["ts_event"], values, strict=True)])
    assert found.shape == (200, WIDTH) and found.dtype == np.float32
    assert np.array_equal(found, whole) and np.array_equal(np.signbit(found), np.signbit(whole))


def test_a_segment_begins_anew_or_goes_on() -> None:
    bars = bar_columns(130)
    values = np.stack([bars[name] for name in VALUES], axis=1).astype(np.float64)
    online = OnlineFeatures(None)
    first = [online.push(int(time), row) for time, row in zip(bars["ts_event"][:60], values[:60], strict=True)]
    held, count = online.bars, online.count
    assert held.shape == (MEMORY, 5) and count == 60
    last = online.push(int(bars["ts_event"][60]), values[60])

    other = OnlineFeatures(None)
    other.begin(held, count)
    assert np.array_equal(other.push(int(bars["ts_event"][60]), values[60]), last)
    other.begin()
    again = [other.push(int(time), row) for time, row in zip(bars["ts_event"][:60], values[:60], strict=True)]
    assert np.array_equal(first, again)
