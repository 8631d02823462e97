"""What every exported model must prove before it gets its name: exact, integer, ordered, batch-invariant, and what it costs."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tftq.data.columns import Batch
from tftq.errors import GateError, ProviderError
from tftq.evaluate.windows import evaluating
from tftq.export.census import Census, take_census
from tftq.io import sha256, written_whole
from tftq.plan.export import WINDOWS
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLstm
from tftq.quant.weights import with_rounded_weights
from tftq.recipe.schema import Format, is_half, is_integer
from tftq.serve.measure import measured
from tftq.serve.proof import HASHES
from tftq.serve.session import feeds, open_session

# Distances are shares of the forecasts' spread.
EXACT = 1e-4  # rounding of floats
HALF = 2e-2  # FP16 has eleven bits
BATCH_INVARIANCE = 1e-5
STEP = 1 / 255  # what a rounding tie may always move: there, floats that differ by their last bit become other integers
INTEGER_SHARE = 0.98  # of the weights outside the LSTM
CHECKED_BATCHES = (1, 2, 7)


@dataclass(frozen=True)
class Check:
    """One property of a model: what was measured, and what is allowed.

    Attributes:
        name: of the property.
        measured: the value.
        allowed: `<= x`, `>= x` or `== x`.
        passed: whether it holds.
    """

    name: str
    measured: float
    allowed: str
    passed: bool


@dataclass(frozen=True)
class Proof:
    """Everything the gate found out about a model that it let through.

    Attributes:
        checks: the properties, all passed.
        max_abs_diff: largest distance from the torch model, in the target's unit, as the runtime optimises the graph.
        census: its products and weights.
        cost: load_ms, latency_ms, rss_bytes and process_bytes at batch 1 in a fresh process, on the CPU.
        nodes: which execution provider computes what there: provider -> operator -> nodes.
        gpu: `Measured` on a GPU as plain types, or `skipped`, the reason why it was not; None where nobody would run it there.
    """

    checks: list[Check]
    max_abs_diff: float
    census: Census
    cost: dict[str, Any]
    nodes: dict[str, dict[str, int]]
    gpu: dict[str, Any] | None = None

    def write(self, path: Path, models: Sequence[Path]) -> None:
        """Write it down, whole, and the hashes of the models, by which it is known whether it is of theirs; see `proven_bytes`.

        Args:
            path: the file, JSON.
            models: what it was found out about.
        """
        found = {**asdict(self), HASHES: [sha256(model) for model in models]}
        with written_whole(path) as part:
            part.write_text(json.dumps(found, indent=1), encoding="utf-8")


def prove(
    path: Path, model: nn.Module, batch: Batch, kind: Format, *, threads: int, kept: Collection[str] = (), gpu: str | None = None
) -> Proof:
    """Hold an exported model against the torch model it came from.

    Args:
        path: the ONNX file.
        model: what it was built from, or computes as the file should; in integers in eval mode where the file does.
        batch: some real windows.
        kind: which format the file is meant to be.
        threads: threads to measure the latency with.
        kept: the layers that were to stay in floating point where the others are quantized.
        gpu: the UUID of the GPU at hand, to measure it there too.

    Returns:
        The proof.

    Raises:
        GateError: a property does not hold; the whole table is in the message.
    """
    expected = forecasts(model, batch)
    spread = float(expected.max() - expected.min()) or 1.0  # in the target's unit where all forecasts are the same
    as_written = run(path, batch, optimise=False)
    optimised = run(path, batch)
    order = torch.arange(sum(CHECKED_BATCHES)) % len(batch.history)  # from the first again where there are fewer windows
    parts = np.concatenate([run(path, _chosen(batch, indices)) for indices in order.split(list(CHECKED_BATCHES))])
    census = take_census(path, path.with_suffix(".optimised"), kept=kept)
    path.with_suffix(".optimised").unlink()

    tolerance = HALF if is_half(kind) else EXACT
    ties = moved_by_ties(model, expected, batch, spread) if is_integer(kind) else None
    checks = [
        *distances("from torch, as written", as_written, expected, spread, tolerance, ties=ties),
        *distances("from torch, as optimised", optimised, expected, spread, tolerance, ties=ties),
        *distances("of batches of 1, 2 and 7 from all at once", parts, optimised[order], spread, BATCH_INVARIANCE, ties=ties),
        *soundness(optimised),
    ]
    if is_integer(kind):
        checks += integrity(census, model, kept)
    elif kind == "fp16_int8":
        checks += stored_as_integers(census, kept)
    require(f"{path.name} ({kind})", checks)
    here = measured(path, threads=threads)
    on_gpu = measured_on_gpu(path, kind, threads=threads, gpu=gpu)
    return Proof(checks, float(np.abs(optimised - expected).max()), census, here.cost, here.nodes, on_gpu)


def soundness(forecasts: np.ndarray) -> list[Check]:
    """Forecasts [batch, horizon, quantiles] are finite, and their quantiles in order."""
    return [
        equals("values that are not finite", float((~np.isfinite(forecasts)).sum()), 0),
        equals("quantiles out of order", float((forecasts[..., 1:] < forecasts[..., :-1]).sum()), 0),
    ]


def integrity(census: Census, model: nn.Module, kept: Collection[str] = ()) -> list[Check]:
    """The products are of integers, and so are the weights, but for those of the layers that were to stay in floating point, which do."""
    left = equals(f"products of float weights left{_beside(kept)}", census.float_weight_products, 0)
    return [left, *stored_as_integers(census, kept), *_lstm_integrity(census, model, kept)]


def _lstm_integrity(census: Census, model: nn.Module, kept: Collection[str]) -> list[Check]:
    """The LSTM is what the model's is: its weights stored as integers, and multiplied as such where it computes so."""
    lstms = [module for module in model.modules() if isinstance(module, FakeQuantizedLstm)]
    checks = [equals("LSTM weights stored in floating point", census.float_lstm_weights, 0)] if lstms else []
    if any(isinstance(module, DynamicLstm) for module in lstms):
        modules = [model.get_submodule(name) for name in kept]
        stay = sum(module.num_layers for module in modules if isinstance(module, nn.LSTM))
        checks.append(equals("LSTM layers that multiply floats", census.operators.get("LSTM", 0), stay))
    return checks


def stored_as_integers(census: Census, kept: Collection[str] = ()) -> list[Check]:
    """The same of the weights alone, whatever the products make of them."""
    name = f"INT8 and INT4 share of the weights outside the LSTM{_beside(kept)}"
    share = at_least(name, census.integer_share_outside_lstm, INTEGER_SHARE)
    return [share, equals("layers kept in floating point", len(census.kept_float), len(kept))] if kept else [share]


def require(what: str, checks: list[Check]) -> None:
    """Let nothing through that failed a check.

    Raises:
        GateError: with the whole table.
    """
    if not all(check.passed for check in checks):
        raise GateError(f"{what} did not pass the gate and was not published:\n{table(checks)}")


def forecasts(model: nn.Module, batch: Batch) -> np.ndarray:
    """A torch model's own, in eval mode and in parts that fit into memory [batch, horizon, quantiles], float32."""
    with evaluating(model), torch.no_grad():
        parts = [model(*_chosen(batch, indices).inputs) for indices in torch.arange(len(batch.history)).split(WINDOWS)]
    return torch.cat(parts).float().cpu().numpy()


def run(path: Path, batch: Batch, *, optimise: bool = True) -> np.ndarray:
    """The forecasts of a file for a batch [batch, horizon, quantiles], float32."""
    session = open_session(path, optimise=optimise)
    return np.asarray(session.run(["forecast"], feeds(session, batch.to("cpu").inputs))[0])


def measured_on_gpu(path: Path, kind: Format, *, threads: int, gpu: str | None) -> dict[str, Any] | None:
    """What a session costs on the GPU at hand, or why that is not known: it says nothing against the model, and fails no run.

    Args:
        path, threads: see `measured`.
        kind: the format; those that multiply integers are not for a GPU.
        gpu: its UUID; None where there is none.

    Returns:
        See `Proof.gpu`.
    """
    if is_integer(kind):
        return None
    if gpu is None:
        return {"skipped": "the run was on the CPU"} if is_half(kind) else None
    try:
        return asdict(measured(path, threads=threads, gpu=gpu))
    except (ProviderError, GateError) as error:
        return {"skipped": str(error)}


def table(checks: list[Check]) -> str:
    """The checks, a line each."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        verdict = "ok" if check.passed else "FAILED"
        lines.append(f"  {verdict:6}  {check.name:{width}}  {check.measured:.3g}  (allowed {check.allowed})")
    return "\n".join(lines)


def _chosen(batch: Batch, indices: Tensor) -> Batch:
    static = None if batch.static is None else batch.static[indices]
    return Batch(batch.history[indices], batch.future[indices], static, batch.target[indices])


def moved_by_ties(model: nn.Module, rounded: np.ndarray, batch: Batch, spread: float) -> float:
    """How far a tie may move a forecast: one activation that rounds the other way, no further than the rounding of all of them.

    Args:
        model: prepared and calibrated.
        rounded: its forecasts of the batch [batch, horizon, quantiles].
        batch: the windows.
        spread: what the distance is a share of.
    """
    floating = forecasts(with_rounded_weights(model), batch)
    return max(STEP, float(np.abs(floating - rounded).max()) / spread)


def distances(name: str, ours: np.ndarray, reference: np.ndarray, spread: float, tolerance: float, *, ties: float | None) -> list[Check]:
    """The largest distance; where values can lie on rounding ties, the nearest window's too, and the largest against what ties may do.

    A bar with a value on a tie moves every window that it is in, so how many windows agree says little: in a large model or a short part
    of the data it can be few. But what computes something else agrees in none.
    """
    with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, which is within no tolerance
        windows = np.abs(ours - reference).reshape(len(ours), -1).max(axis=1) / spread  # [batch]
    largest = f"distance {name}"
    if ties is None:
        return [_at_most(largest, float(windows.max()), tolerance)]
    return [
        _at_most(f"{largest}, nearest window", float(windows.min()), tolerance),
        _at_most(f"{largest}, farthest window", float(windows.max()), ties),
    ]


def _beside(kept: Collection[str]) -> str:
    return ", beside the layers kept" if kept else ""


def _at_most(name: str, measured: float, allowed: float) -> Check:
    return Check(name, measured, f"<= {allowed:.3g}", measured <= allowed)


def at_least(name: str, measured: float, allowed: float) -> Check:
    """A property that must not be below what is allowed."""
    return Check(name, measured, f">= {allowed:.3g}", measured >= allowed)


def equals(name: str, measured: float, allowed: float) -> Check:
    """A property that must be exactly what is allowed."""
    return Check(name, measured, f"== {allowed:g}", measured == allowed)
