"""Streams: the forecasts of the one-piece model at every bar, restarts, and refused inputs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.export.made import ORIGIN, Make
from tests.export.pairs import LSTMS, SPREAD, MakePair, Pair, in_one_piece
from tests.model.small import small_model
from tests.quant.small import small_batch
from tests.runs import ROOT
from tftq.errors import NonFiniteError, StreamError
from tftq.export.graph import build_forecaster
from tftq.export.pair import forecaster
from tftq.export.pair_graph import build_pair
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.serve.stream import EncodedWindows, Stream, window_bytes
from tftq.spec.formats import FORECAST_FILE, STEP_FILE
from tftq.spec.metadata import read_metadata

pytestmark = pytest.mark.xdist_group("exports")


def test_every_bar_of_a_replay_equals_the_one_piece_model(bars_pair: Pair) -> None:
    """All 1,000 shipped bars, pushed one by one; a forecast for each of the 1,000 - 60 - 10 + 1 = 931 windows."""
    train = bars_pair.data.train
    stream, forecasts = Stream(bars_pair.folder), []
    lookback, horizon = train.inputs.lookback, train.inputs.horizon
    known = len(train.inputs.history) - len(train.inputs.future)
    rows = train.rows
    for last, row in enumerate(rows[:-horizon]):
        stream.push(row)
        assert stream.ready == (last >= lookback - 1)
        if stream.ready:
            forecasts.append(stream.forecast(rows[last + 1 : last + 1 + horizon, known:]))
    rows = torch.from_numpy(rows)
    windows = rows.unfold(0, lookback, 1).mT[:-horizon]  # [windows, lookback, history columns]
    ahead = rows[lookback:, known:].unfold(0, horizon, 1).mT  # [windows, horizon, known columns]
    expected = in_one_piece(bars_pair.folder / "int8_ptq.onnx", Batch(windows, ahead, None, torch.empty(0)))
    assert len(forecasts) == len(expected) == 931
    assert np.ptp(expected[:, 0, 1]) > 0.01 * np.ptp(expected)  # the forecasts do move
    assert np.abs(np.stack(forecasts) - expected).max() <= SPREAD * np.ptp(expected)


def test_static_columns_and_categories(static_pair: Path, make: Make) -> None:
    made = make("small fp32")
    batch = small_batch(made.model.inputs, 12, seed=4)
    assert batch.static is not None
    replayed = forecaster(Stream(static_pair, batch.static[0]))(batch)  # each window is another series
    expected = in_one_piece(made.path, batch)
    assert np.abs(replayed - expected).max() <= SPREAD * np.ptp(expected)
    with torch.no_grad():
        assert np.abs(replayed - made.model(*batch.inputs).numpy()).max() <= 1e-4 * np.ptp(expected)


@pytest.mark.parametrize("name", LSTMS)
def test_two_layers_that_begin_anew_in_every_window(make: Make, make_pair: MakePair, tmp_path: Path, name: str) -> None:
    """One series with static columns, bar by bar, of each kind of LSTM: every window is that of the model in one piece."""
    made = make(name)
    for file, content in make_pair(name).items():
        (tmp_path / file).write_bytes(content)
    batch = small_batch(made.model.inputs, 30, seed=5)
    assert batch.static is not None
    lookback = made.model.inputs.lookback
    rows = batch.history.flatten(0, 1)[: lookback + 29]
    series = Batch(rows.unfold(0, lookback, 1).mT, batch.future, batch.static[:1].expand(30, -1), batch.target)
    stream, replayed = Stream(tmp_path, batch.static[0]), []
    for i, row in enumerate(rows):
        stream.push(row)
        if i >= lookback - 1:
            replayed.append(stream.forecast(batch.future[i + 1 - lookback]))
    expected = in_one_piece(made.path, series)
    assert np.ptp(expected[:, 0, 1]) > 0.01 * np.ptp(expected)
    assert np.abs(np.stack(replayed) - expected).max() <= SPREAD * np.ptp(expected)


def test_the_window_that_is_full_is_that_of_the_last_bars() -> None:
    """Against an LSTM of torch over the last four of ten rows; the others are one, two and three rows long."""
    torch.manual_seed(0)
    lstm, rows, lookback = torch.nn.LSTM(5, 3, num_layers=2), torch.randn(10, 5), 4
    windows = EncodedWindows(states=4, others=lookback - 1, hidden=3)
    with torch.no_grad():
        for last in range(len(rows)):
            states = torch.cat([torch.from_numpy(windows.open[0]), torch.zeros(4, 1, 3)], dim=1)  # [states, windows, hidden]
            _, (hidden, cell) = lstm(rows[last].expand(1, lookback, -1), (states[:2].contiguous(), states[2:].contiguous()))
            windows.take(torch.cat([hidden, cell])[None].numpy())
            if last < lookback - 1:
                continue
            full = windows.full()
            encoded, (hidden, cell) = lstm(rows[last + 1 - lookback : last + 1])
            torch.testing.assert_close(torch.from_numpy(full["encoded"][0]), encoded)
            torch.testing.assert_close(torch.from_numpy(full["state"][0]), torch.cat([hidden, cell]))
            _, (hidden, cell) = lstm(rows[last : last + 1])
            torch.testing.assert_close(torch.from_numpy(windows.open[0, :, -1]), torch.cat([hidden, cell]))


def test_a_window_of_one_bar() -> None:
    windows = EncodedWindows(states=2, others=0, hidden=3)
    for value in (1.0, 2.0):
        windows.take(np.full((1, 2, 1, 3), value, np.float32))
        full = windows.full()
        assert windows.open.shape == (1, 2, 0, 3) and np.array_equal(full["encoded"], np.full((1, 1, 3), value, np.float32))
        assert np.array_equal(full["state"], np.full((1, 2, 3), value, np.float32))


def test_the_memory_of_what_is_kept(bars_pair: Pair, static_pair: Path, make_pair: MakePair, tmp_path: Path) -> None:
    """Floats: raw and selected bars, and in the windows of each length the encoder's output at each bar, and its states."""
    assert window_bytes(read_metadata(bars_pair.folder / STEP_FILE)) == 4 * (60 * (225 + 16) + 60 * 60 * 16 + 60 * 2 * 16)
    assert window_bytes(read_metadata(static_pair / FORECAST_FILE)) == 4 * (12 * (5 + 16) + 12 * 12 * 16 + 12 * 4 * 16)
    whole = tmp_path / STEP_FILE
    whole.write_bytes(make_pair("small int8, lstm dynamic")[STEP_FILE])
    assert window_bytes(read_metadata(whole)) == 4 * 12 * (5 + 16)
    stream = Stream(bars_pair.folder)
    encoder = stream._encoder
    assert encoder is not None
    arrays = (stream._bars, stream._selected, encoder.open, encoder._last, encoder._outputs)
    assert sum(array.nbytes for array in arrays) == window_bytes(read_metadata(bars_pair.folder / STEP_FILE))


def test_a_pair_of_windows_of_one_bar(tmp_path: Path) -> None:
    """No window is open then that the next bar could find."""
    like = small_model(static=False)
    model = TemporalFusionTransformer(replace(like.inputs, lookback=1), *like.scalings, like.architecture)
    table = tabulate(model)[0].eval()
    (tmp_path / "fp32.onnx").write_bytes(build_forecaster(table, "fp32", "points", ORIGIN))
    for name, content in build_pair(table, "fp32", "points", ORIGIN).items():
        (tmp_path / name).write_bytes(content)
    windows = small_batch(table.inputs, 5)
    expected = in_one_piece(tmp_path / "fp32.onnx", windows)
    assert np.abs(forecaster(Stream(tmp_path))(windows) - expected).max() <= SPREAD * np.ptp(expected)


def test_bars_may_come_together(bars_pair: Pair) -> None:
    windows = bars_pair.windows
    one, several = Stream(bars_pair.folder), Stream((bars_pair.folder / STEP_FILE, bars_pair.folder / FORECAST_FILE))
    for row in windows.history[3]:
        one.push(row)
    several.push(windows.history[0])
    several.push(windows.history[3, :0])  # none
    several.push(windows.history[3, -3:])
    assert np.allclose(one.forecast(windows.future[3]), several.forecast(windows.future[3]), rtol=0, atol=1e-8)
    several.push(torch.cat([windows.history[0], windows.history[3]]))  # more than a window
    assert np.allclose(one.forecast(windows.future[3]), several.forecast(windows.future[3]), rtol=0, atol=1e-8)


def test_a_break_empties_the_window(bars_pair: Pair) -> None:
    windows, stream = bars_pair.windows, Stream(bars_pair.folder)
    stream.push(windows.history[0])
    first = stream.forecast(windows.future[0])
    stream.push(windows.history[9, -9:])
    stream.reset()
    assert not stream.ready
    stream.push(windows.history[0, :-1])
    with pytest.raises(StreamError, match=r"^59 of 60 bars so far: push more"):
        stream.forecast(windows.future[0])
    stream.push(windows.history[0, -1])
    assert np.allclose(stream.forecast(windows.future[0]), first, rtol=0, atol=1e-8)


@pytest.mark.parametrize("bars", [0, 40, 60, 75])
def test_a_restart_gives_the_same_answers(bars_pair: Pair, tmp_path: Path, bars: int) -> None:
    windows, stream = bars_pair.windows, Stream(bars_pair.folder)
    rows = torch.cat([windows.history[9], windows.history[0]])
    stream.push(rows[:bars])
    np.savez(tmp_path / "state.npz", **stream.state())
    restarted = Stream(bars_pair.folder)
    restarted.push(windows.history[19])  # of which nothing must be left
    with np.load(tmp_path / "state.npz") as state:
        restarted.restore(state)
    for row in rows[bars:]:
        assert stream.ready == restarted.ready
        stream.push(row)
        restarted.push(row)
        assert not stream.ready or np.array_equal(stream.forecast(windows.future[0]), restarted.forecast(windows.future[0]))
    assert stream.ready


def test_a_state_of_another_model_or_series_is_refused(bars_pair: Pair, static_pair: Path) -> None:
    with pytest.raises(StreamError, match=r"^a state of another pair of models"):
        Stream(bars_pair.folder).restore(Stream(static_pair, [1, 0.5]).state())
    with pytest.raises(StreamError, match=r"^a state of other static columns \(sector, size\): open the stream with the state's"):
        Stream(static_pair, [2, 0.5]).restore(Stream(static_pair, [1, 0.5]).state())


def test_a_damaged_state_is_refused_and_the_stream_goes_on(static_pair: Path, make: Make) -> None:
    window, stream = small_batch(make("small fp32").model.inputs, 1), Stream(static_pair, [1, 0.5])
    stream.push(window.history[0])
    before, state = stream.forecast(window.future[0]), stream.state()
    for lacking in state:
        with pytest.raises(StreamError, match=rf"^a state without {lacking}: take it whole from `state\(\)`, or push the last bars anew$"):
            stream.restore({name: part for name, part in state.items() if name != lacking})
    for bars, why in ((state["bars"][:, 1:], r"found an array \[12, 4\]"), (state["bars"] * np.nan, "column 'price' is not finite")):
        with pytest.raises(StreamError, match=f"^history: {why}"):
            stream.restore({**state, "bars": bars})
    assert np.array_equal(stream.forecast(window.future[0]), before)


def test_what_a_caller_does_with_its_arrays_does_not_reach_into_a_window(static_pair: Path, make: Make) -> None:
    window, static = small_batch(make("small fp32").model.inputs, 1), np.array([1, 0.5], np.float32)
    stream, other = Stream(static_pair, static), Stream(static_pair, static.copy())
    other.push(window.history[0])
    for row in window.history[0]:
        stream.push(row)
        for mine in (static, *(part for name, part in stream.state().items() if name != "pair")):
            mine[:] = 2
    assert np.array_equal(stream.forecast(window.future[0]), other.forecast(window.future[0]))


def test_what_does_not_fit_is_refused_by_name(bars_pair: Pair, static_pair: Path) -> None:
    windows, stream = bars_pair.windows, Stream(bars_pair.folder)
    stream.push(windows.history[0])
    before = stream.forecast(windows.future[0])
    row = windows.history[1, -1].clone()
    name = bars_pair.data.train.inputs.history[7].name
    row[7] = torch.nan
    with pytest.raises(StreamError, match=rf"^history: column '{name}' is not finite"):
        stream.push(row)
    with pytest.raises(StreamError, match=r"^history: found an array \[1, 224\], expected \[1, 225\]: "):
        stream.push(row[1:])
    with pytest.raises(StreamError, match=r"^history: not an array of numbers: could not convert string to float: 'n/a'$"):
        stream.push(["n/a"] * 225)
    with pytest.raises(StreamError, match=r"^history: column '\w+' is not finite"):
        stream.push([1e300] * 225)
    with pytest.raises(StreamError, match=r"^future: found an array \[9, 11\], expected \[10, 11\]: (\w+, ){5}…$"):
        stream.forecast(windows.future[0, 1:])
    assert np.array_equal(stream.forecast(windows.future[0]), before)  # nothing of it was taken
    with pytest.raises(StreamError, match=r"^static: found an array \[1\], expected \[0\]: no columns$"):
        Stream(bars_pair.folder, [1])
    with pytest.raises(StreamError, match=r"^static: found an array \[0\], expected \[2\]: sector, size$"):
        Stream(static_pair)
    with pytest.raises(StreamError, match=r"^static: found an array \[3\], expected \[2\]: sector, size$"):
        Stream(static_pair, [1, 2]).reset([1, 2, 3])


def test_columns_are_picked_by_name(static_pair: Path) -> None:
    stream = Stream(static_pair, [1, 0.5])
    named = {"hour": [3, 4], "extra": [9, 9], "price": [1.5, 2], "holiday": [0, 1], "state": [2, 0], "volume": [7, 8]}
    assert stream.columns["history"] == ["price", "state", "volume", "hour", "holiday"]
    assert stream.pick(named).tolist() == [[1.5, 2, 7, 3, 0], [2, 0, 8, 4, 1]] and stream.pick(named).dtype == np.float32
    assert stream.pick({name: values[1] for name, values in named.items()}).tolist() == [2, 0, 8, 4, 1]
    assert stream.pick(named, "future").tolist() == [[3, 0], [4, 1]]
    with pytest.raises(StreamError, match=r"^static: lacks sector, size; needed: every column of `columns\['static'\]`$"):
        stream.pick(named, "static")
    with pytest.raises(StreamError, match=r"^hour: not an array of numbers: could not convert string to float: '9:30'$"):
        stream.pick({**named, "hour": ["9:30", "9:31"]})
    with pytest.raises(StreamError, match=r"^history: lacks price, state, volume, hour, holiday; needed"):
        stream.pick({})


def test_only_the_halves_of_one_pair_are_taken(bars_pair: Pair, static_pair: Path, tmp_path: Path) -> None:
    step, forecast = bars_pair.folder / STEP_FILE, bars_pair.folder / FORECAST_FILE
    with pytest.raises(StreamError, match=r"step\.onnx: no such file; a run writes step\.onnx and forecast\.onnx where"):
        Stream(tmp_path)
    with pytest.raises(StreamError, match=r"forecast\.onnx: not the step half of a streaming pair$"):
        Stream((forecast, step))
    with pytest.raises(StreamError, match=r"^found 1 files, expected two, step\.onnx and forecast\.onnx, or their folder$"):
        Stream((step,))
    with pytest.raises(StreamError, match=r"int8_ptq\.onnx: not the forecast half of a streaming pair$"):
        Stream((step, bars_pair.folder / "int8_ptq.onnx"))
    with pytest.raises(StreamError, match=r"halves of two pairs; take both from one export$"):
        Stream((step, static_pair / FORECAST_FILE))
    (tmp_path / STEP_FILE).write_bytes(b"no model")
    with pytest.raises(StreamError, match=r"step\.onnx: no ONNX file"):
        Stream(tmp_path)


def test_a_forecast_that_is_not_finite_is_refused(static_pair: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(static_pair, [1, 0.5])
    window = small_batch(make("small fp32").model.inputs, 1)
    stream.push(window.history[0])
    monkeypatch.setattr(stream, "_selected", np.full_like(stream._selected, np.nan))
    with pytest.raises(NonFiniteError, match=r"^the forecast is not finite, though its inputs are"):
        stream.forecast(window.future[0])


def test_a_push_that_fails_leaves_no_window_with_a_gap(bars_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, stream = bars_pair.windows, Stream(bars_pair.folder)
    stream.push(windows.history[0])
    expected = stream.forecast(windows.future[0])
    take, taken = stream._take, list[np.ndarray]()

    def fail_at_the_second(bar: np.ndarray) -> None:
        taken.append(bar)
        if len(taken) == 2:
            raise MemoryError
        take(bar)

    with monkeypatch.context() as broken:
        broken.setattr(stream, "_take", fail_at_the_second)
        with pytest.raises(MemoryError):
            stream.push(windows.history[3, -3:])
    assert not stream.ready
    stream.push(windows.history[0])
    assert np.array_equal(stream.forecast(windows.future[0]), expected)


def test_it_serves_without_torch(bars_pair: Pair) -> None:
    program = f"import sys; from tftq.serve.stream import Stream; Stream({str(bars_pair.folder)!r}); print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "'onnxruntime'" in loaded and not any(f"'{name}'" in loaded for name in ("torch", "onnx", "pydantic", "pyarrow"))
