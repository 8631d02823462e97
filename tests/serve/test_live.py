"""Rows as they come: the same forecasts, bit for bit, as over a file of them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.data.helpers import BEGIN, MINUTE, bar_columns, table_columns, take, write
from tests.ensemble.models import pair
from tests.serving import all_of, bars_model, table_model
from tftq.data.features.online import VALUES
from tftq.errors import StreamError
from tftq.serve.forecast import predict
from tftq.serve.live import Live
from tftq.serve.stream import Stream
from tftq.spec.metadata import METADATA_KEY


def bars(columns: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Bars, one by one."""
    times = columns["ts_event"]
    return [
        {"timestamp": int(times[i]), **{name: columns[name][i] for name in VALUES}, **{name: values[i] for name, values in more.items()}}
        for i in range(len(times))
    ]


def test_bars_are_forecast_as_those_of_a_file(tmp_path: Path) -> None:
    """With a gap: the window and the warm-up begin anew after it."""
    bars_model(tmp_path / "m.onnx", warmup=50)
    columns = take(bar_columns(400), np.r_[0:150, 180:400])
    expected = all_of(predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", columns), threads=1), batch_size=1)
    live, found, origins, times = Live(tmp_path / "m.onnx", threads=1), [], [], []
    for bar in bars(columns):
        forecast = live.push(bar)
        if forecast is not None:
            found.append(forecast)
            origins.append(live.time)
            times.append(live.times)
    assert np.array_equal(np.stack(found), expected.values)
    assert np.array_equal(origins, expected.origins) and np.array_equal(times, expected.times)


def test_another_contract_begins_anew(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx", lookback=5, warmup=0)
    live = Live(tmp_path / "m.onnx")
    given = bars(bar_columns(12), symbol=["ESH4"] * 7 + ["ESM4"] * 5)
    assert [live.push(bar) is not None for bar in given] == [False] * 4 + [True] * 3 + [False] * 4 + [True]


def test_a_streaming_pair_is_fed_the_same_columns(tmp_path: Path) -> None:
    """Against a `Stream` that is given the columns of a file, and the model in one piece over that file."""
    pair(tmp_path)
    columns = take(bar_columns(60), np.r_[0:25, 30:60])
    path = write(tmp_path / "a.parquet", columns)
    prediction = predict(tmp_path / "fp32.onnx", path, threads=1)
    stream, live = Stream(tmp_path, threads=1), Live(tmp_path, threads=1)
    found = [forecast for forecast in map(live.push, bars(columns)) if forecast is not None]
    history, future = prediction.history.batch(np.arange(len(prediction)))
    assert len(found) == len(prediction) == 2 * (1 - 5 - 8) + 25 + 30
    for i, forecast in enumerate(found):
        stream.push(history[i])
        assert np.array_equal(forecast, stream.forecast(future[i]))
    np.testing.assert_allclose(np.stack(found), all_of(prediction).values, rtol=1e-5, atol=1e-8)


def test_rows_of_a_table_are_forecast_as_those_of_a_file(tmp_path: Path) -> None:
    table_model(tmp_path / "m.onnx", calendar=("hour",))
    columns = table_columns(30)
    expected = all_of(predict(tmp_path / "m.onnx", write(tmp_path / "t.parquet", columns), threads=1), batch_size=1)
    live, found = Live(tmp_path / "m.onnx", threads=1), []
    for i in range(28):  # of the last two the known future is not given
        row = {name: values[i] for name, values in columns.items()}
        found.append(live.push(row, {"x": columns["x"][i + 1 : i + 3]}))
    assert found[:3] == [None] * 3 and np.array_equal(np.stack(found[3:]), expected.values)  # type: ignore[arg-type]
    assert live.push({name: values[28] for name, values in columns.items()}) is None


def test_times_are_given_as_they_are_at_hand(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx", lookback=2, warmup=0)
    first, second, third = bars(bar_columns(3))
    live = Live(tmp_path / "m.onnx")
    with pytest.raises(StreamError, match=r"^no row so far"):
        live.times  # noqa: B018
    live.push({**first, "timestamp": np.datetime64(BEGIN, "ns")})
    begin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=BEGIN // 1000)
    assert live.push({**second, "timestamp": begin + timedelta(minutes=1)}) is not None
    assert live.push(third) is not None and live.time == BEGIN + 2 * MINUTE


def test_what_cannot_be_is_refused_and_the_window_stays(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx", lookback=2, warmup=0)
    first, second, third = bars(bar_columns(3))
    live = Live(tmp_path / "m.onnx")
    live.push(first)
    for change, why in (
        ({"close": np.nan}, "close: found nan; allowed: finite numbers"),
        ({"close": "high"}, "close: found 'high'; allowed: a number"),
        ({"low": second["high"] + 1}, "no bar: open .* needed: prices above zero, open and close within low to high"),
        ({"timestamp": first["timestamp"]}, "a row of 2024-01-08T00:00:00Z after that of 2024-01-08T00:00:00Z"),
        ({"timestamp": "now"}, "found the time 'now'; allowed: nanoseconds UTC"),
        ({"timestamp": datetime(2024, 1, 8, 0, 1)}, "without a zone"),
        ({"timestamp": np.datetime64("NaT")}, "found the time NaT; allowed: those that 64 bits of nanoseconds hold"),
        ({"timestamp": np.datetime64("2300", "Y")}, "found the time 2300; allowed: those that 64 bits of nanoseconds hold"),
        ({"timestamp": datetime.max.replace(tzinfo=UTC)}, "allowed: those that 64 bits of nanoseconds hold"),
        ({"timestamp": 2**63 - 1}, "allowed: those that 64 bits of nanoseconds hold"),  # and the horizon after it
        ({"volume": 1e39}, "volume: found 1e\\+39; allowed: finite numbers"),
        ({"volume": 10**400}, "volume: found inf; allowed: finite numbers"),
    ):
        with pytest.raises(StreamError, match=why):
            live.push({**second, **change})
    with pytest.raises(StreamError, match=r"^a row without close; needed: timestamp, open, high, low, close, volume$"):
        live.push({name: value for name, value in second.items() if name != "close"})
    with pytest.raises(StreamError, match="only the clock is known"):
        live.push(second, {"x": [1]})
    assert live.push(second) is not None and live.push(third) is not None


def test_a_future_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    table_model(tmp_path / "m.onnx")
    columns = table_columns(5)
    live, row = Live(tmp_path / "m.onnx"), {name: values[0] for name, values in columns.items()}
    with pytest.raises(StreamError, match=r"^future: found y; needed: x$"):
        live.push(row, {"y": [1, 2]})
    with pytest.raises(StreamError, match=r"^future: x: needed: 2 values"):
        live.push(row, {"x": [1, 2, 3]})
    assert live.time is None


def test_columns_that_are_not_made_are_refused(tmp_path: Path) -> None:
    table_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    (entry,) = (entry for entry in model.metadata_props if entry.key == METADATA_KEY)
    values = json.loads(entry.value)
    values["inputs"]["history"][0]["name"] = "of another release"
    entry.value = json.dumps(values)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(StreamError, match="expects columns that this tftq does not make"):
        Live(tmp_path / "other.onnx")
