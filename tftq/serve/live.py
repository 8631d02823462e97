"""Forecast as raw bars or rows of a table arrive: make the columns, move the window, and forecast a full window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from tftq.data.features.calendar import calendar_columns
from tftq.data.features.online import VALUES, OnlineFeatures
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS, clock_features
from tftq.data.files import iso
from tftq.errors import NonFiniteError, StreamError
from tftq.serve.find import find_model, model_folder
from tftq.serve.forecast import ServedModel
from tftq.serve.stream import Stream
from tftq.spec.formats import STEP_FILE
from tftq.spec.metadata import ForecasterMetadata, Origin, read_metadata

Row = Mapping[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 2**63  # nanoseconds
LARGEST = float(np.finfo(np.float32).max)


class Live:
    """A forecaster fed bar by bar, or row by row of a table; its forecasts are those of `tftq predict` over the same rows.

    A window never straddles a break: after another step than that of training, or another symbol, it is filled again.

    Args:
        model: an exported .onnx file, the folder of a streaming pair, a folder of models, or the folder of a run; of a folder the pair is
            taken where there is one, else the first format of `tftq.spec.formats.PREFERRED`.
        threads: threads within an operator; 0 leaves the number to the runtime.

    Attributes:
        metadata: of the model's file.
        time: of the newest row, nanoseconds UTC; None before the first.

    Raises:
        PredictError, StreamError: a model that cannot serve.
        MetadataError: damaged metadata.
    """

    def __init__(self, model: Path | str, *, threads: int = 0) -> None:
        path = Path(model)
        pair = model_folder(path) / STEP_FILE
        self._window: _Window
        if path.is_dir() and pair.is_file():
            metadata = read_metadata(pair)
            if not isinstance(metadata, ForecasterMetadata) or metadata.origin is None:
                raise StreamError(f"{pair}: its metadata says nothing of the data it was trained on; export the model again with tftq run")
            self.metadata, origin = metadata, metadata.origin
            self._window = Stream(pair.parent, threads=threads)
        else:
            served = ServedModel(find_model(path, None), threads=threads)
            self.metadata, origin = served.metadata, served.origin
            self._window = _Rows(served)
        self._step = origin.step_ns
        try:
            self._columns: _Columns = _BarColumns(origin) if origin.of_bars else _TableColumns(origin)
            self._history = [self._columns.history.index(name) for name in self.metadata.names("history")]
            self._future = [self._columns.future.index(name) for name in self.metadata.names("future")]
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(f"{path}: expects columns that this tftq does not make ({error}); export the model again") from error
        self._warmup = int(origin.data.get("warmup", 0)) if origin.of_bars else 0
        self._count = 0  # rows since the last break
        self._symbol: object = None
        self.time: int | None = None

    @property
    def times(self) -> np.ndarray:
        """Return the forecast times that follow the newest row, int64 nanoseconds UTC [horizon]."""
        if self.time is None:
            raise StreamError("no row so far: push one first")
        return self.time + self._step * np.arange(1, self.metadata.horizon + 1)

    def push(self, row: Row, future: Mapping[str, ArrayLike] | None = None) -> np.ndarray | None:
        """Add the next bar or row, in order of time.

        Args:
            row: of bars: timestamp, open, high, low, close, volume and, where contracts change, symbol; prices in their own unit. Of a
                table: its time, target, observed and known columns, by the names of training. Times are nanoseconds UTC, `datetime` with
                a zone, or `datetime64` in UTC.
            future: of a table with known columns: their values over the horizon, name -> [horizon]. Without it the row is added and not
                forecast.

        Returns:
            float32 [horizon, quantiles] in the target's unit; None while the window is not full.

        Raises:
            StreamError: a row that lacks a value, is not finite, or is not later than the one before; the window stays unchanged.
            NonFiniteError: the forecast is not finite.
        """
        if lacking := [name for name in (self._columns.time, *self._columns.values) if name not in row]:
            raise StreamError(f"a row without {', '.join(lacking)}; needed: {', '.join((self._columns.time, *self._columns.values))}")
        time = _nanoseconds(row[self._columns.time])
        if not -LATEST < time < LATEST - self._step * self.metadata.horizon:
            raise StreamError(f"found the time {row[self._columns.time]!r}; allowed: those that 64 bits of nanoseconds hold, 1678 to 2262")
        values = np.array([_number(name, row[name]) for name in self._columns.values])
        if self.time is not None and time <= self.time:
            raise StreamError(f"a row of {iso(time)} after that of {iso(self.time)}; push rows in order of time, each once")
        known = self._columns.check(values, future, self.metadata.horizon)
        if self.time is None or time - self.time != self._step or row.get("symbol") != self._symbol:
            self._columns.begin()
            self._window.reset()
            self._count = 0
        self.time, self._symbol = time, row.get("symbol")
        made = self._columns.make(time, values)
        self._count += 1
        if self._count > self._warmup:
            self._window.push(made[self._history])
        if not self._window.ready or known is None:
            return None
        clock = self._columns.clock(self.times).astype(np.float32)
        return self._window.forecast(np.concatenate([known, clock], axis=1)[:, self._future])


class _Window(Protocol):
    """The rows of a window and their forecast: a `Stream`, or `_Rows`."""

    @property
    def ready(self) -> bool: ...
    def reset(self) -> None: ...
    def push(self, features: np.ndarray) -> None: ...
    def forecast(self, future: np.ndarray) -> np.ndarray: ...


class _Rows:
    """The window of a model in one piece, which takes it whole."""

    def __init__(self, model: ServedModel) -> None:
        self._model, self._kept = model, np.empty((0, len(model.metadata.names("history"))), np.float32)

    @property
    def ready(self) -> bool:
        return len(self._kept) == self._model.metadata.lookback

    def reset(self) -> None:
        self._kept = self._kept[:0]

    def push(self, features: np.ndarray) -> None:
        self._kept = np.concatenate([self._kept, features[None]])[-self._model.metadata.lookback :]

    def forecast(self, future: np.ndarray) -> np.ndarray:
        values = self._model.forecast(self._kept[None], future[None])[0]
        if not np.isfinite(values).all():
            raise NonFiniteError("the forecast is not finite, though its inputs are; look at the model")
        return values


class _Columns(Protocol):
    """How the columns of a model are made from raw values.

    Attributes:
        time, values: names of the required values of a row.
        history, future: names of the columns made, in order.
    """

    time: str
    values: tuple[str, ...]
    history: tuple[str, ...]
    future: tuple[str, ...]

    def begin(self) -> None: ...
    def check(self, values: np.ndarray, future: Mapping[str, ArrayLike] | None, horizon: int) -> np.ndarray | None: ...
    def make(self, time: int, values: np.ndarray) -> np.ndarray: ...
    def clock(self, times: np.ndarray) -> np.ndarray: ...


class _BarColumns:
    """The features of bars, from the bars of the segment so far."""

    time: str = "timestamp"
    values: tuple[str, ...] = VALUES
    history: tuple[str, ...] = (*BAR_COLUMNS, *CLOCK_COLUMNS)
    future: tuple[str, ...] = CLOCK_COLUMNS

    def __init__(self, origin: Origin) -> None:
        self._zone = origin.data.get("time_zone")
        self._online = OnlineFeatures(self._zone)

    def begin(self) -> None:
        self._online.begin()

    def check(self, values: np.ndarray, future: Mapping[str, ArrayLike] | None, horizon: int) -> np.ndarray:
        """Refuse an impossible bar; only the clock is known of the future."""
        first, high, low, last, volume = values
        if not (0 < low <= min(first, last) <= max(first, last) <= high and volume >= 0):
            shown = ", ".join(f"{name} {value:g}" for name, value in zip(VALUES, values, strict=True))
            raise StreamError(f"no bar: {shown}; needed: prices above zero, open and close within low to high, volume of zero or more")
        if future is not None:
            raise StreamError("the future of bars is not given: only the clock is known of it")
        return np.empty((horizon, 0), np.float32)

    def make(self, time: int, values: np.ndarray) -> np.ndarray:
        return self._online.push(time, values)

    def clock(self, times: np.ndarray) -> np.ndarray:
        return clock_features(times, self._zone)


class _TableColumns:
    """The columns of a table unchanged, and those of its calendar."""

    def __init__(self, origin: Origin) -> None:
        data = origin.data
        self._zone, self._cycles, self._known = data.get("time_zone"), data.get("calendar", ()), tuple(data.get("known", ()))
        self.time = str(data["time"])
        self.values: tuple[str, ...] = (data["target"], *data.get("observed", ()), *self._known)
        clock = tuple(f"{cycle}_{part}" for cycle in self._cycles for part in ("sin", "cos"))
        self.history: tuple[str, ...] = (*self.values, *clock)
        self.future: tuple[str, ...] = (*self._known, *clock)

    def begin(self) -> None:
        """Begin a segment; rows of a table do not depend on earlier ones."""

    def check(self, values: np.ndarray, future: Mapping[str, ArrayLike] | None, horizon: int) -> np.ndarray | None:
        """Return the known columns over the horizon, float32 [horizon, columns]; None where they are not given."""
        if self._known and future is None:
            return None
        given = future or {}
        if set(given) != set(self._known):
            raise StreamError(f"future: found {', '.join(given) or 'nothing'}; needed: {', '.join(self._known) or 'nothing'}")
        columns = [np.array([_number(name, value) for value in np.asarray(given[name]).reshape(-1)]) for name in self._known]
        if wrong := [name for name, column in zip(self._known, columns, strict=True) if len(column) != horizon]:
            raise StreamError(f"future: {', '.join(wrong)}: needed: {horizon} values, one per step of the horizon")
        return np.stack(columns, axis=1).astype(np.float32) if columns else np.empty((horizon, 0), np.float32)

    def make(self, time: int, values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, self.clock(np.array([time]))[0]]).astype(np.float32)

    def clock(self, times: np.ndarray) -> np.ndarray:
        return calendar_columns(times, self._zone, self._cycles)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise StreamError(f"{name}: found {value!r}; allowed: a number") from error
    except OverflowError:  # an integer that no float holds
        number = math.inf
    if not abs(number) <= LARGEST:
        raise StreamError(f"{name}: found {number:g}; allowed: finite numbers of float32; leave the row out, or correct its value")
    return number


def _nanoseconds(time: Any) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise StreamError(f"found the time {time} without a zone; give it one, as datetime.now(UTC) has")
        return (time - EPOCH) // timedelta(microseconds=1) * 1000
    if isinstance(time, np.datetime64):
        converted = time.astype("datetime64[ns]")
        if converted.astype(time.dtype) != time:  # no time at all, or one that wrapped around
            raise StreamError(f"found the time {time}; allowed: those that 64 bits of nanoseconds hold, 1678 to 2262")
        return int(converted.astype(np.int64))
    if isinstance(time, int | np.integer):
        return int(time)
    raise StreamError(f"found the time {time!r}; allowed: nanoseconds UTC as an integer, datetime with a zone, or datetime64")
