"""Forecasts bar by bar: each bar is read once, selected once, and encoded in every window that contains it.

Needs ONNX Runtime and NumPy only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tftq.errors import MetadataError, NonFiniteError, StreamError
from tftq.serve.session import InferenceSession, open_session, require_runtime
from tftq.spec.formats import FORECAST_FILE, STEP_FILE
from tftq.spec.metadata import HalfMetadata, read_metadata

NAMED = 5  # columns in an error; all of them are in `Stream.columns`


class Stream:
    """The sliding window of one series, and its forecasts by a streaming pair.

    Args:
        models: the folder that holds step.onnx and forecast.onnx, or these two files.
        static: the series' raw static columns [static columns], where the model has any.
        threads: threads within an operator; 0 leaves the number to the runtime.
        shared: see `tftq.serve.session.open_session`.

    Raises:
        ProviderError: ONNX Runtime is too old for the files.
        StreamError: missing files, files that are not the two halves of one pair, or static columns that do not fit the model.
    """

    def __init__(
        self,
        models: Path | str | Sequence[Path | str],
        static: ArrayLike | None = None,
        *,
        threads: int = 0,
        shared: bool = False,
    ) -> None:
        if isinstance(models, Path | str):
            models = [Path(models) / name for name in (STEP_FILE, FORECAST_FILE)]
        if len(models) != 2:
            raise StreamError(f"found {len(models)} files, expected two, {STEP_FILE} and {FORECAST_FILE}, or their folder")
        step, forecast = (Path(path) for path in models)
        self._step, metadata = _open(step, "step", threads, shared)
        self._forecast, other = _open(forecast, "forecast", threads, shared)
        if metadata.pair != other.pair:
            raise StreamError(f"{step} and {forecast}: halves of two pairs; take both from one export")
        self.lookback, self.horizon = metadata.lookback, metadata.horizon
        self.quantiles = list(metadata.quantiles)
        self.columns = {name: list(metadata.names(name)) for name in metadata.inputs}
        self._pair = metadata.pair
        self._static = self._static_feed(static)
        self._bars = np.zeros((self.lookback, len(self.columns["history"])), np.float32)  # raw, the newest last
        self._selected = np.zeros((self.lookback, metadata.hidden), np.float32)
        self._count = 0  # rows at the end of the window that hold bars
        self._context: dict[str, np.ndarray] = {}  # made from the static columns, for the forecast
        shapes = {node.name: node.shape for node in self._step.get_inputs()}
        self._encoder = EncodedWindows(*shapes["states"][1:]) if "states" in shapes else None

    @property
    def ready(self) -> bool:
        """Return whether the window is full, so that `forecast` can be called."""
        return self._count == self.lookback

    def pick(self, features: Mapping[str, ArrayLike], name: str = "history") -> np.ndarray:
        """Pick the columns of an input, in the model's order, from named columns.

        Args:
            features: column name -> its value, or its values [bars], for instance a pandas DataFrame; other columns are ignored.
            name: the input: history, future or static.

        Returns:
            float32 [columns] or [bars, columns], as `push`, `forecast` and `reset` take them.

        Raises:
            StreamError: missing columns, or columns that do not hold numbers.
        """
        if missing := [column for column in self.columns[name] if column not in features]:
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            raise StreamError(f"{name}: lacks {', '.join(missing[:NAMED])}{more}; needed: every column of `columns[{name!r}]`")
        return np.stack([_numbers(column, features[column]) for column in self.columns[name]], axis=-1)

    def push(self, features: ArrayLike) -> None:
        """Move the window on by one bar or more.

        Args:
            features: its raw history columns [history columns], in the order of `columns["history"]`; or several bars in order of time,
                [bars, history columns].

        Raises:
            StreamError: a wrong number of columns, or a value that is not finite; the window stays as it was.
            Exception: any error of the runtime; the window is then empty.
        """
        bars = self._read_bars(features)[-self.lookback :]
        try:
            for bar in bars:
                self._take(bar)
        except BaseException:  # the window may hold some of the bars, or half of one
            self.reset()
            raise

    def forecast(self, future: ArrayLike) -> np.ndarray:
        """Forecast what follows the newest bar.

        Args:
            future: the raw known columns of the bars to come [horizon, known columns], in the order of `columns["future"]`.

        Returns:
            float32 [horizon, quantiles] in the target's unit, ascending.

        Raises:
            StreamError: the window is not full, or the future has another shape or a value that is not finite.
            NonFiniteError: the forecast is not finite.
        """
        if not self.ready:
            raise StreamError(f"{self._count} of {self.lookback} bars so far: push more before asking for a forecast (see `ready`)")
        ahead = _numbers("future", future)
        self._check("future", ahead, (self.horizon, len(self.columns["future"])))
        encoded = {} if self._encoder is None else self._encoder.full()
        found = self._forecast.run(None, {"selected": self._selected[None], "future": ahead[None], **encoded, **self._context})[0][0]
        if not np.isfinite(found).all():
            raise NonFiniteError("the forecast is not finite, though its inputs are; look at the model")
        return np.asarray(found)

    def reset(self, static: ArrayLike | None = None) -> None:
        """Empty the window: after a gap, a session break or a change of contract, which no window may straddle.

        Args:
            static: the raw static columns of the bars to come, where they belong to another series.

        Raises:
            StreamError: static columns that do not fit the model.
        """
        if static is not None:
            self._static = self._static_feed(static)
        self._count = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return the state for the same forecasts after a restart, as arrays that `np.savez` stores and `np.load` reads without pickle."""
        kept = self._bars[self.lookback - self._count :].copy()  # [bars, history columns]
        return {"pair": np.array(self._pair), "bars": kept, **{name: values[0].copy() for name, values in self._static.items()}}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from a `state`, which replaces the bars so far; its bars are computed again.

        Args:
            state: of a stream of the same pair and the same static columns.

        Raises:
            StreamError: an incomplete state, or one of another pair or other static columns; the window stays as it was.
        """
        if lacking := [name for name in ("pair", "bars", *self._static) if name not in state]:
            raise StreamError(f"a state without {', '.join(lacking)}: take it whole from `state()`, or push the last bars anew")
        if str(state["pair"]) != self._pair:
            raise StreamError("a state of another pair of models: push the last bars anew")
        if not all(np.array_equal(state[name], values[0]) for name, values in self._static.items()):
            raise StreamError(f"a state of other static columns ({', '.join(self.columns['static'])}): open the stream with the state's")
        bars = self._read_bars(state["bars"])
        self.reset()
        self.push(bars)

    def _take(self, bar: np.ndarray) -> None:
        """Run the step model on a bar [history columns] and move the window on by it."""
        states = {} if self._encoder is None else {"states": self._encoder.open}
        results = self._step.run(None, {"history": bar[None], **states, **self._static})
        found = dict(zip((node.name for node in self._step.get_outputs()), results, strict=True))
        self._bars = np.concatenate([self._bars[1:], bar[None]])
        self._selected = np.concatenate([self._selected[1:], found["selected"]])
        if self._encoder is not None:
            self._encoder.take(found["new_states"])
        self._context = {name: found[name] for name in found if name == "context"}
        self._count = min(self._count + 1, self.lookback)

    def _read_bars(self, features: ArrayLike) -> np.ndarray:
        """Return raw bars as float32 [bars, history columns], checked."""
        bars = np.atleast_2d(_numbers("history", features))
        self._check("history", bars, (len(bars), len(self.columns["history"])))
        return bars

    def _static_feed(self, static: ArrayLike | None) -> dict[str, np.ndarray]:
        """Return the static input by name, [1, static columns]; empty where the model has none."""
        names = self.columns.get("static", [])
        if static is None and not names:
            return {}
        values = np.zeros(0, np.float32) if static is None else _numbers("static", static)
        self._check("static", values, (len(names),))
        return {"static": values[None].copy()}  # a copy: the caller may change its own array

    def _check(self, name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
        if values.shape != shape:
            columns = self.columns.get(name, [])
            names = ", ".join([*columns[:NAMED], *(["…"] if len(columns) > NAMED else [])]) or "no columns"
            raise StreamError(f"{name}: found an array {list(values.shape)}, expected {list(shape)}: {names}")
        if not np.isfinite(values).all():
            column = self.columns[name][int(np.argwhere(~np.isfinite(values))[0, -1])]
            raise StreamError(f"{name}: column {column!r} is not finite; leave the bar out and reset, or correct its value")


class EncodedWindows:
    """The encoder's states and outputs of every window that contains the newest bar: one of each length up to the lookback.

    Args:
        states: hidden and cell state of each layer of the encoder.
        others: windows begun before a bar arrives, one fewer than the lookback.
        hidden: the size of each state.

    Attributes:
        open: the states of the windows that the next bar continues [1, states, others, hidden], the oldest first.
    """

    def __init__(self, states: int, others: int, hidden: int) -> None:
        lookback = others + 1
        self.open = np.zeros((1, states, others, hidden), np.float32)
        self._last = np.zeros((1, states, hidden), np.float32)  # of the full window
        self._outputs = np.zeros((lookback, lookback, hidden), np.float32)  # [windows in turn, bars of each, hidden]
        self._oldest = 0  # index of the full window

    def take(self, after: np.ndarray) -> None:
        """Move on by a bar, given all states after it [1, states, lookback, hidden], the oldest window's first."""
        states, lookback = after.shape[1:3]
        self._oldest = (self._oldest + 1) % lookback
        order = np.arange(lookback)
        self._outputs[(self._oldest + order) % lookback, lookback - 1 - order] = after[0, states // 2 - 1]  # hidden of the last layer
        self._last, self.open = after[:, :, 0], after[:, :, 1:]

    def full(self) -> dict[str, np.ndarray]:
        """Return the full window's encoder output at each bar and its final states, as inputs of the forecast model."""
        return {"encoded": self._outputs[self._oldest][None], "state": self._last}


def window_bytes(metadata: HalfMetadata) -> int:
    """Return the bytes that a `Stream` keeps beside its sessions: raw and selected bars, encoder outputs and states.

    Args:
        metadata: of either half.
    """
    lookback, hidden = metadata.lookback, metadata.hidden
    encoded = lookback * hidden * (lookback + metadata.states) if metadata.states else 0  # per window: outputs and states
    return np.dtype(np.float32).itemsize * (lookback * (len(metadata.inputs["history"]) + hidden) + encoded)


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    """Convert to float32; values beyond its range become infinite."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise StreamError(f"{name}: not an array of numbers: {error}") from error


def _open(path: Path, part: str, threads: int, shared: bool) -> tuple[InferenceSession, HalfMetadata]:
    """Open one half of a pair; return its session and metadata."""
    if not path.is_file():
        raise StreamError(f"{path}: no such file; a run writes {STEP_FILE} and {FORECAST_FILE} where export.formats has stream")
    try:
        metadata = read_metadata(path)
    except MetadataError as error:
        raise StreamError(str(error)) from error
    if not isinstance(metadata, HalfMetadata) or metadata.part != part:
        raise StreamError(f"{path}: not the {part} half of a streaming pair")
    require_runtime(path, metadata.oldest_runtime)
    try:
        session = open_session(path, threads=threads, spinning=False, shared=shared)  # the two halves take turns on the same cores
    except Exception as error:  # the runtime's errors have no other base
        raise StreamError(f"{path}: ONNX Runtime cannot load it: {error}") from error
    return session, metadata
