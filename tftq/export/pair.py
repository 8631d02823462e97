"""Export the streaming pair: build two files, replay them bar by bar beside the one-piece model, then name them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tftq.data.windows import BatchArrays, Windows
from tftq.evaluate.exported import evaluate_forecasts
from tftq.evaluate.windows import metrics_for
from tftq.export.forecaster import Exported, forecasts_of
from tftq.export.gate import BATCH_INVARIANCE, soundness
from tftq.export.pair_graph import build_pair
from tftq.export.prove import Comparison, Outcome, Proof, Subject, prove
from tftq.export.publish import to_be_proven
from tftq.model.batch import Batch
from tftq.model.tft import TemporalFusionTransformer
from tftq.serve.session import feeds, open_session
from tftq.serve.stream import Stream
from tftq.spec.formats import FORMATS, STREAM, Format
from tftq.spec.metadata import Origin

STRETCHES, REPLAYED = 4, 32  # spread over the validation part; windows replayed in each


@dataclass(frozen=True)
class ExportedPair(Exported):
    """A streaming pair that passed the gate.

    Attributes:
        path: the step half.
        partner: the forecast half.
        proof, quality, test: see `Exported`; costs are those of both halves together, and rss_bytes of the window that is kept beside them,
            so latency_ms is that of a bar.
    """

    partner: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return both halves, and their one proof."""
        return self.path, self.partner, self.path.with_name(FORMATS[STREAM].proof_file)

    def summary(self) -> dict[str, object]:
        """See `Exported.summary`."""
        return {**super().summary(), "partner": str(self.partner)}


def export_pair(
    model: TemporalFusionTransformer,
    format: Format,
    one_piece: Path,
    validation: Windows,
    test: Windows | None,
    *,
    batch_size: int,
    origin: Origin,
) -> ExportedPair:
    """Write step.onnx, forecast.onnx and stream.export.json beside the one-piece model, or nothing.

    Args:
        model: the one-piece model's source.
        format: the one-piece model's format.
        one_piece: its file.
        validation: the windows to prove and to measure the pair with.
        test: further windows to measure it with, where there are any.
        batch_size: windows per run.
        origin: the files' run and data.

    Raises:
        GateError: the pair does not forecast what the one-piece model does; no file with its name is left.
    """
    step, forecast, proof = (one_piece.with_name(name) for name in (*FORMATS[STREAM].files, FORMATS[STREAM].proof_file))
    with to_be_proven(step, forecast, proof=proof) as unproven:
        pair = build_pair(model, format, validation.target_unit, origin)
        for part, path in zip(unproven.parts, (step, forecast), strict=True):
            part.write_bytes(pair[path.name])
        batch = _stretches(validation)
        stream = Stream(unproven.parts, None if batch.static is None else batch.static[0])
        unproven.proof = _prove(unproven.parts, stream, model, format, one_piece, batch)
        replay = forecaster(stream)
        quality = evaluate_forecasts(STREAM, replay, validation, metrics_for(model), batch_size=batch_size)
        tested = None if test is None else evaluate_forecasts(STREAM, replay, test, metrics_for(model), batch_size=batch_size)
    return ExportedPair(step, unproven.proof, quality, tested, forecast)


def forecaster(stream: Stream) -> Callable[[BatchArrays], np.ndarray]:
    """Make a function of whole windows from a stream: a window that continues the one before it by a bar pushes only that bar.

    Args:
        stream: of the pair.

    Returns:
        From windows, in order of time, to their forecasts, float32 [batch, horizon, quantiles]; a batch may continue the one before.
    """
    before: BatchArrays | None = None  # the last window

    def run(batch: BatchArrays) -> np.ndarray:
        nonlocal before
        forecasts = []
        for window in _one_by_one(batch):
            if before is not None and _continues(window, before):
                stream.push(window.history[-1])
            else:
                stream.reset(window.static)
                stream.push(window.history)
            before = window
            forecasts.append(stream.forecast(window.future))
        return np.stack(forecasts)

    return run


def _one_by_one(batch: BatchArrays) -> Iterator[BatchArrays]:
    """Yield its windows, without the dimension of the batch."""
    for i in range(len(batch.history)):
        yield BatchArrays(*(None if part is None else part[i] for part in batch))  # type: ignore[arg-type]


def _continues(window: BatchArrays, before: BatchArrays) -> bool:
    """Return whether a window is the one before, a bar later."""
    same_series = window.static is None or before.static is None or np.array_equal(window.static, before.static)
    return same_series and np.array_equal(window.history[:-1], before.history[1:])


def _prove(
    pair: tuple[Path, ...], stream: Stream, model: TemporalFusionTransformer, format: Format, one_piece: Path, batch: BatchArrays
) -> Proof:
    """Prove a pair, see `prove`: a replay must forecast what the one-piece model does, window by window."""

    def replay(_: np.ndarray) -> Outcome:
        replayed = forecaster(stream)(batch)
        session = open_session(one_piece)
        alone = (tuple(part[None] for part in window.inputs) for window in _one_by_one(batch))
        expected = np.concatenate([session.run(["forecast"], feeds(session, window))[0] for window in alone])
        return Outcome(replayed, [Comparison("from the one-piece model, bar by bar", replayed, expected, BATCH_INVARIANCE)])

    subject = Subject(
        title=f"the streaming pair of {format}",
        files=pair,
        format=format,
        model=model,
        compute=lambda model: forecasts_of(model, Batch.of(batch)),
        run=replay,
        inspect=soundness,
        kept=model.kept_float,
    )
    return prove(subject)


def _stretches(windows: Windows) -> BatchArrays:
    """Select windows in order, in a few stretches of neighbours: a bar on a rounding tie is in all the windows of one."""
    length = min(REPLAYED, len(windows))
    starts = np.linspace(0, len(windows) - length, STRETCHES).round().astype(np.int64)
    return windows.batch(np.unique(starts[:, None] + np.arange(length)))  # those that overlap, once
