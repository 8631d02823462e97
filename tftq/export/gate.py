"""The checks that an exported model must pass before it gets its name: exact, integer, ordered, batch-invariant."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from torch import nn

from tftq.errors import GateError
from tftq.export.census import Census
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.layers import FakeQuantizedLstm
from tftq.spec.formats import FORMATS, Format

# Distances are shares of the forecasts' spread.
EXACT = 1e-4  # rounding of floats
HALF = 2e-2  # FP16 has eleven bits
BATCH_INVARIANCE = 1e-5
STEP = 1 / 255  # always allowed at a rounding tie: there, floats that differ by their last bit become other integers
INTEGER_SHARE = 0.98  # of the weights outside the LSTM
CHECKED_BATCHES = (1, 2, 7)


@dataclass(frozen=True)
class Check:
    """One property of a model: its measured and its allowed value.

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


def soundness(forecasts: np.ndarray) -> list[Check]:
    """Check that forecasts [batch, horizon, quantiles] are finite, and their quantiles in order."""
    return [
        finiteness(forecasts),
        equals("quantiles out of order", float((forecasts[..., 1:] < forecasts[..., :-1]).sum()), 0),
    ]


def finiteness(output: np.ndarray) -> Check:
    """Check that all values of an output are finite."""
    return equals("values that are not finite", float((~np.isfinite(output)).sum()), 0)


def storage(census: Census, model: nn.Module, format: Format, kept: Collection[str] = ()) -> list[Check]:
    """Check that a file stores and multiplies the types of its format; nothing where that is floating point throughout.

    Args:
        census: of the file, or of both halves of a streaming pair.
        model: its source.
        format: the format.
        kept: the layers that were to stay in floating point where the others are quantized.
    """
    if FORMATS[format].multiplies_integers:
        return _integrity(census, model, kept)
    return _stored_as_integers(census, kept) if FORMATS[format].weight_only else []


def _integrity(census: Census, model: nn.Module, kept: Collection[str] = ()) -> list[Check]:
    """Check that products and weights are integers, except in the layers that were to stay in floating point, which do."""
    left = equals(f"products of float weights left{_beside(kept)}", census.float_weight_products, 0)
    return [left, *_stored_as_integers(census, kept), *_lstm_integrity(census, model, kept)]


def _lstm_integrity(census: Census, model: nn.Module, kept: Collection[str]) -> list[Check]:
    """Check that the LSTM is the model's: its weights stored as integers, and multiplied as such where it computes so."""
    lstms = [module for module in model.modules() if isinstance(module, FakeQuantizedLstm)]
    checks = [equals("LSTM weights stored in floating point", census.float_lstm_weights, 0)] if lstms else []
    if any(isinstance(module, DynamicLstm) for module in lstms):
        modules = [model.get_submodule(name) for name in kept]
        stay = sum(module.num_layers for module in modules if isinstance(module, nn.LSTM))
        checks.append(equals("LSTM layers that multiply floats", census.operators.get("LSTM", 0), stay))
    return checks


def _stored_as_integers(census: Census, kept: Collection[str] = ()) -> list[Check]:
    """Check that the weights are stored as integers, whatever the type of the products."""
    name = f"INT8 and INT4 share of the weights outside the LSTM{_beside(kept)}"
    share = at_least(name, census.integer_share_outside_lstm, INTEGER_SHARE)
    return [share, equals("layers kept in floating point", len(census.kept_float), len(kept))] if kept else [share]


def require(title: str, checks: list[Check]) -> None:
    """Require that all checks passed.

    Args:
        title: of the model, in the message.
        checks: its properties.

    Raises:
        GateError: with the whole table.
    """
    if not all(check.passed for check in checks):
        raise GateError(f"{title} did not pass the gate and was not published:\n{table(checks)}")


def table(checks: list[Check]) -> str:
    """Format checks as a table, one per line."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        verdict = "ok" if check.passed else "FAILED"
        lines.append(f"  {verdict:6}  {check.name:{width}}  {check.measured:.3g}  (allowed {check.allowed})")
    return "\n".join(lines)


def distances(name: str, output: np.ndarray, reference: np.ndarray, tolerance: float, *, spread: float, ties: float | None) -> list[Check]:
    """Check the largest distance; where values can lie on rounding ties, the nearest window's too, and the largest against the ties' bound.

    A bar with a value on a tie moves all its windows, so counting the windows that agree means little: in a large model or a short part
    of the data it can be few. But a different computation agrees in none.

    Args:
        name: of the distance.
        output, reference: float32 [windows, ...].
        tolerance: the largest distance allowed, as a share of the spread.
        spread: the unit of distances, in that of the output.
        ties: how far rounding ties may move a window, as a share of the spread; None where there are none.
    """
    with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, which is within no tolerance
        windows = np.abs(output - reference).reshape(len(output), -1).max(axis=1) / spread  # [windows]
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
    """Check a property with a lower bound."""
    return Check(name, measured, f">= {allowed:.3g}", measured >= allowed)


def equals(name: str, measured: float, allowed: float) -> Check:
    """Check a property with a single allowed value."""
    return Check(name, measured, f"== {allowed:g}", measured == allowed)
