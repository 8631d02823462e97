"""Forecasts bar by bar: each bar is read once, selected and taken to the encoder in every window that it is in.

It serves without torch.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike

from tftq.errors import NotFiniteError, StreamError
from tftq.serve.session import open_session
from tftq.spec.metadata import METADATA_KEY

STEP_FILE, FORECAST_FILE = "step.onnx", "forecast.onnx"
NAMED = 5  # columns in an error; all of them are in `Stream.columns`


class Stream:
    """The window of one series, and its forecasts.

    Args:
        models: the folder that holds step.onnx and forecast.onnx, or these two files.
        static: the series' raw static columns [static columns], where the model has any.
        threads: threads within an operator; 0 leaves it to the runtime.
        shared: see `tftq.serve.session.open_session`.

    Raises:
        StreamError: files that are not there, or no pair of one model; static columns that do not fit it.
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
            raise StreamError(f"found {len(models)} files, wanted two, {STEP_FILE} and {FORECAST_FILE}, or their folder")
        step, forecast = (Path(path) for path in models)
        self._step, notes = _open(step, "step", threads, shared)
        self._forecast, others = _open(forecast, "forecast", threads, shared)
        if notes["pair"] != others["pair"]:
            raise StreamError(f"{step} and {forecast}: halves of two pairs; take both from one export")
        self.lookback: int = notes["lookback"]
        self.horizon: int = notes["horizon"]
        self.quantiles: list[float] = notes["quantiles"]
        self.columns: dict[str, list[str]] = {name: [column["name"] for column in columns] for name, columns in notes["inputs"].items()}
        self._pair: str = notes["pair"]
        self._static = self._static_feed(static)
        self._bars = np.zeros((self.lookback, len(self.columns["history"])), np.float32)  # raw, the newest last
        self._selected = np.zeros((self.lookback, notes["hidden"]), np.float32)
        self._count = 0  # of rows, from the last one back, that are bars
        self._context: dict[str, np.ndarray] = {}  # what the static columns tell the forecast
        shapes = {node.name: node.shape for node in self._step.get_inputs()}
        self._encoder = EncodedWindows(*shapes["states"][1:]) if "states" in shapes else None

    @property
    def ready(self) -> bool:
        """Whether the window is full, so that there is a forecast."""
        return self._count == self.lookback

    def pick(self, features: Mapping[str, ArrayLike], name: str = "history") -> np.ndarray:
        """The columns of an input in their order, out of named ones, of which there may be more.

        Args:
            features: column name -> its value, or its values [bars]; a pandas DataFrame is such a mapping.
            name: the input they are for: history, future or static.

        Returns:
            float32 [columns] or [bars, columns], as `push`, `forecast` and `reset` take them.

        Raises:
            StreamError: columns that are not there, or hold no numbers.
        """
        if missing := [column for column in self.columns[name] if column not in features]:
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            raise StreamError(f"{name}: lacks {', '.join(missing[:NAMED])}{more}; wanted is every column of `columns[{name!r}]`")
        return np.stack([_numbers(column, features[column]) for column in self.columns[name]], axis=-1)

    def push(self, features: ArrayLike) -> None:
        """Take the next bar.

        Args:
            features: its raw history columns [history columns], in the order of `columns["history"]`; or several bars in order of time,
                [bars, history columns].

        Raises:
            StreamError: not so many columns, or a value that is no finite number; the window stays as it was.
            Exception: what the runtime raises; the window is empty then.
        """
        bars = self._read_bars(features)[-self.lookback :]
        try:
            for bar in bars:
                self._take(bar)
        except BaseException:  # some may have been taken, or one by half
            self.reset()
            raise

    def forecast(self, future: ArrayLike) -> np.ndarray:
        """Forecast what follows the newest bar.

        Args:
            future: the raw known columns of the bars to come [horizon, known columns], in the order of `columns["future"]`.

        Returns:
            float32 [horizon, quantiles] in the target's unit, ascending.

        Raises:
            StreamError: the window is not full; a future of another shape, or with a value that is no finite number.
            NotFiniteError: the forecast is not finite.
        """
        if not self.ready:
            raise StreamError(f"{self._count} of {self.lookback} bars so far: push more before asking for a forecast (see `ready`)")
        ahead = _numbers("future", future)
        self._check("future", ahead, (self.horizon, len(self.columns["future"])))
        encoded = {} if self._encoder is None else self._encoder.full()
        found = self._forecast.run(None, {"selected": self._selected[None], "future": ahead[None], **encoded, **self._context})[0][0]
        if not np.isfinite(found).all():
            raise NotFiniteError("the forecast is not finite, though its inputs are; look at the model")
        return np.asarray(found)

    def reset(self, static: ArrayLike | None = None) -> None:
        """Forget the bars, which will be in no full window: after a gap, a session break or a change of contract, which none may straddle.

        Args:
            static: the raw static columns of the bars to come, where they are another series'.

        Raises:
            StreamError: static columns that do not fit the model.
        """
        if static is not None:
            self._static = self._static_feed(static)
        self._count = 0

    def state(self) -> dict[str, np.ndarray]:
        """What a restart needs for the same answers, as arrays that `np.savez` stores and `np.load` reads without pickle."""
        kept = self._bars[self.lookback - self._count :].copy()  # [bars, history columns]
        return {"pair": np.array(self._pair), "bars": kept, **{name: values[0].copy() for name, values in self._static.items()}}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`, in place of the bars so far; its bars are computed anew.

        Args:
            state: of a stream of the same pair and the same static columns.

        Raises:
            StreamError: it is no state, or of another pair or of other static columns; the window stays as it was.
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
        """Compute what a bar [history columns] comes to, and move the window on by it."""
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
        """Raw bars that fit [bars, history columns]."""
        bars = np.atleast_2d(_numbers("history", features))
        self._check("history", bars, (len(bars), len(self.columns["history"])))
        return bars

    def _static_feed(self, static: ArrayLike | None) -> dict[str, np.ndarray]:
        """The static input by name, [1, static columns]; nothing where the model has none."""
        names = self.columns.get("static", [])
        if static is None and not names:
            return {}
        values = np.zeros(0, np.float32) if static is None else _numbers("static", static)
        self._check("static", values, (len(names),))
        return {"static": values[None].copy()}  # what the caller does with its own must not reach into a window

    def _check(self, name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
        if values.shape != shape:
            columns = self.columns.get(name, [])
            names = ", ".join([*columns[:NAMED], *(["…"] if len(columns) > NAMED else [])]) or "no columns"
            raise StreamError(f"{name}: found an array {list(values.shape)}, wanted {list(shape)}: {names}")
        if not np.isfinite(values).all():
            column = self.columns[name][int(np.argwhere(~np.isfinite(values))[0, -1])]
            raise StreamError(f"{name}: column {column!r} is not finite; leave the bar out and reset, or mend its value")


class EncodedWindows:
    """What the encoder has made so far of every window that the newest bar is in: one of each length up to the lookback.

    Args:
        states: hidden and cell state of each layer of the encoder.
        others: how many windows a bar finds begun, the lookback less one.
        hidden: the size of each state.

    Attributes:
        open: the states of the windows that the next bar will find [1, states, others, hidden], the oldest first.
    """

    def __init__(self, states: int, others: int, hidden: int) -> None:
        lookback = others + 1
        self.open = np.zeros((1, states, others, hidden), np.float32)
        self._last = np.zeros((1, states, hidden), np.float32)  # of the window that is full
        self._outputs = np.zeros((lookback, lookback, hidden), np.float32)  # [windows in turn, bars of each, hidden]
        self._oldest = 0  # which of them is full

    def take(self, after: np.ndarray) -> None:
        """Go on by a bar, given all states after it [1, states, lookback, hidden], the oldest window's first."""
        states, lookback = after.shape[1:3]
        self._oldest = (self._oldest + 1) % lookback
        order = np.arange(lookback)
        self._outputs[(self._oldest + order) % lookback, lookback - 1 - order] = after[0, states // 2 - 1]  # hidden of the last layer
        self._last, self.open = after[:, :, 0], after[:, :, 1:]

    def full(self) -> dict[str, np.ndarray]:
        """Of the window that is full, what the encoder made of each bar, and its states in the end, as the forecast takes them."""
        return {"encoded": self._outputs[self._oldest][None], "state": self._last}


def window_bytes(notes: Mapping[str, Any]) -> int:
    """The memory that a `Stream` keeps of its bars, beside its sessions.

    Args:
        notes: the metadata of either half.
    """
    lookback, hidden = notes["lookback"], notes["hidden"]
    encoded = lookback * hidden * (lookback + notes["states"]) if notes.get("states") else 0  # of each window: its bars, and its states
    return np.dtype(np.float32).itemsize * (lookback * (len(notes["inputs"]["history"]) + hidden) + encoded)


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    """As float32; what is beyond its range becomes infinite."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise StreamError(f"{name}: no array of numbers: {error}") from error


def _open(path: Path, part: str, threads: int, shared: bool) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
    """A session, and what its file says of itself."""
    if not path.is_file():
        raise StreamError(f"{path}: no such file; a run writes {STEP_FILE} and {FORECAST_FILE} where export.formats has stream")
    try:
        session = open_session(path, threads=threads, spinning=False, shared=shared)  # the two halves take turns
    except Exception as error:  # the runtime's errors have no other base
        raise StreamError(f"{path}: no model that ONNX Runtime can load: {error}") from error
    notes = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "{}"))
    if (notes.get("format"), notes.get("part")) != ("stream", part):
        raise StreamError(f"{path}: not the {part} half of a streaming pair")
    return session, notes
