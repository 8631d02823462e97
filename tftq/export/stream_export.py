"""The streaming pair from the model to two files with names: built, replayed bar by bar beside the one-piece model, then renamed."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tftq.data.columns import Batch
from tftq.data.windows import Windows
from tftq.export.census import Census, float_lstm_weights, integer_shares, kept_weights, stored_weights, take_census
from tftq.export.evaluate import evaluate_forecasts
from tftq.export.gate import BATCH_INVARIANCE, Proof, distances, forecasts, integrity, measured, moved_by_ties, require, soundness
from tftq.export.measure import feeds, open_session
from tftq.export.publish import MEASURED_THREADS, Exported, to_be_proven
from tftq.export.stream import FORECAST_FILE, STEP_FILE, Stream
from tftq.export.stream_graph import build_pair
from tftq.model.tft import TemporalFusionTransformer
from tftq.recipe.schema import Format, is_integer
from tftq.train.validation import metrics_for

STRETCHES, REPLAYED = 4, 32  # spread over the validation part; windows replayed in each
PROOF = "stream.export.json"


@dataclass(frozen=True)
class ExportedPair(Exported):
    """A streaming pair that passed the gate.

    Attributes:
        path: the step half.
        partner: the forecast half.
        proof, quality, test: see `Exported`; costs are those of both halves together, so latency_ms is that of a bar.
    """

    partner: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """Both halves, and their one proof."""
        return self.path, self.partner, self.path.with_name(PROOF)

    def summary(self) -> dict[str, object]:
        """See `Exported.summary`."""
        return {**super().summary(), "partner": str(self.partner)}


def export_pair(
    model: TemporalFusionTransformer,
    weights: Format,
    one_piece: Path,
    validation: Windows,
    test: Windows | None,
    *,
    batch_size: int,
    metadata: Mapping[str, object],
) -> ExportedPair:
    """Write step.onnx, forecast.onnx and stream.export.json beside the one-piece model, or nothing.

    Args:
        model: what the one-piece model was built from.
        weights: the one-piece model's format.
        one_piece: its file.
        validation: the windows to prove and to measure the pair with.
        test: further windows to measure it with, where there are any.
        batch_size: windows a run.
        metadata: what to note in both files.

    Raises:
        GateError: the pair does not forecast what the one-piece model does; no file with its name is left.
    """
    step, forecast, proven = (one_piece.with_name(name) for name in (STEP_FILE, FORECAST_FILE, PROOF))
    with to_be_proven(step, forecast, proof=proven) as parts:
        pair = build_pair(model, weights, {**metadata, "target": validation.target_unit})
        for part, path in zip(parts, (step, forecast), strict=True):
            part.write_bytes(pair[path.name])
        proof = _prove(parts, model, weights, one_piece, _stretches(validation), batch_size)
        together = forecaster(*parts)
        quality = evaluate_forecasts("stream", together, validation, metrics_for(model), batch_size=batch_size)
        tested = None if test is None else evaluate_forecasts("stream", together, test, metrics_for(model), batch_size=batch_size)
    proof.write(proven, [step, forecast])
    return ExportedPair(step, proof, quality, tested, forecast)


def replay(stream: Stream, batch: Batch) -> np.ndarray:
    """Forecast windows as a stream meets them: one that continues the one before by a bar pushes that bar alone.

    Args:
        stream: of the pair.
        batch: the windows, in order of time.

    Returns:
        float32 [batch, horizon, quantiles].
    """
    forecasts = []
    for i, (history, future) in enumerate(zip(batch.history.numpy(), batch.future.numpy(), strict=True)):
        static = None if batch.static is None else batch.static[i].numpy()
        continues = i > 0 and np.array_equal(history[:-1], batch.history[i - 1, 1:].numpy())
        if continues and (batch.static is None or torch.equal(batch.static[i], batch.static[i - 1])):
            stream.push(history[-1])
        else:
            stream.reset(static)
            stream.push(history)
        forecasts.append(stream.forecast(future))
    return np.stack(forecasts)


def forecaster(step: Path, forecast: Path) -> Callable[[Batch], np.ndarray]:
    """The pair as one function of whole windows, any number at once.

    Args:
        step, forecast: the halves.

    Returns:
        From a batch to its forecasts, float32 [batch, horizon, quantiles].
    """
    first, second = open_session(step), open_session(forecast)

    def run(batch: Batch) -> np.ndarray:
        count, lookback, _ = batch.history.shape
        bars = [batch.history.flatten(0, 1), *(() if batch.static is None else (batch.static.repeat_interleave(lookback, dim=0),))]
        selected = first.run(None, feeds(first, bars))[0].reshape(count, lookback, -1)  # [batch, lookback, hidden]
        return np.asarray(second.run(None, feeds(second, (selected, *batch.inputs[1:])))[0])

    return run


def _prove(
    pair: tuple[Path, ...], model: TemporalFusionTransformer, weights: Format, one_piece: Path, batch: Batch, batch_size: int
) -> Proof:
    """Hold a replay against the one-piece model, window by window, and count both halves, and measure them side by side."""
    static = None if batch.static is None else batch.static[0].numpy()
    step, forecast = pair
    replayed = replay(Stream((step, forecast), static), batch)
    session, together = open_session(one_piece), forecaster(step, forecast)
    alone = [Batch(*(None if part is None else part[i : i + 1] for part in batch)) for i in range(len(batch.history))]  # type: ignore[arg-type]
    expected = np.concatenate([session.run(["forecast"], feeds(session, window.inputs))[0] for window in alone])
    some = Batch(*(None if part is None else part[:batch_size] for part in batch))  # type: ignore[arg-type]
    in_torch = forecasts(model, batch)
    spread = float(expected.max() - expected.min()) or 1.0
    integer = is_integer(weights)
    ties = moved_by_ties(model, in_torch, batch, spread) if integer else None
    census = _census_of(pair, model.kept_float)
    checks = [
        *distances("from the one-piece model, bar by bar", replayed, expected, spread, BATCH_INVARIANCE, ties=ties),
        *distances("of bars at once from bar by bar", together(some), replayed[:batch_size], spread, BATCH_INVARIANCE, ties=ties),
        *soundness(replayed),
        *(integrity(census, model, model.kept_float) if integer else []),
    ]
    require(f"the streaming pair of {weights}", checks)
    found = measured(*pair, threads=MEASURED_THREADS)
    return Proof(checks, float(np.abs(replayed - in_torch).max()), census, found.cost, found.nodes)


def _stretches(windows: Windows) -> Batch:
    """Windows in order, in a few stretches of neighbours: a bar on a rounding tie is in all the windows of one."""
    length = min(REPLAYED, len(windows))
    starts = torch.linspace(0, len(windows) - length, STRETCHES).round().long()
    return windows.batch((starts[:, None] + torch.arange(length)).unique())  # those that overlap, once


def _census_of(pair: tuple[Path, ...], kept: Collection[str]) -> Census:
    """Both halves counted together."""
    found = []
    for path in pair:
        optimised = path.with_suffix(".optimised")
        found.append(take_census(path, optimised, kept=kept))
        optimised.unlink()
    weights = [weight for path in pair for weight in stored_weights(path)]
    return Census(
        operators=dict(sorted(sum((Counter(half.operators) for half in found), Counter[str]()).items())),
        products=[product for half in found for product in half.products],
        integer_products=dict(sum((Counter(half.integer_products) for half in found), Counter[str]())),
        float_weight_products=sum(half.float_weight_products for half in found),
        float_lstm_weights=float_lstm_weights(weights, kept),
        kept_float=kept_weights(weights, kept),
        **integer_shares(weights, kept),
    )
