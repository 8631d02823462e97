"""What a run prints: a line or a table for each thing a person wants to know."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.export.forecaster import Exported
from tftq.memory.components import MIB
from tftq.memory.ledger import Ledger
from tftq.memory.timeline import Timeline
from tftq.model.tabulate import KNOT_COUNTS, TOLERANCE, TabulatedVariable
from tftq.plan.training import StagePlan
from tftq.quant.sensitivity import Sensitivity
from tftq.recipe.schema import Format
from tftq.spec.quantiles import quantile_name
from tftq.train.state import Training

TOLD_LAYERS = 10  # of those that lose most by being quantized; all of them are in the report
NAMED = 5  # variables in a line; all of them are in summary.json and in the report


def planned_line(stage: str, plan: StagePlan, budget_mb: int) -> str:
    """What a stage is expected to need."""
    parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in plan.update.components.items() if size)
    return f"planned peak of {stage}: {plan.update.peak_bytes / MIB:.0f} of {budget_mb} MiB ({parts})"


def memory_line(timeline: Timeline, planned: int) -> str:
    """What it did need beside the peak that was planned, in bytes, and whether every phase left its record."""
    peak = timeline.peak_bytes
    measured = "not measured" if peak is None else f"{peak / MIB:.0f} MiB"
    lines = [f"memory peak {measured} (planned {planned / MIB:.0f}), {timeline} records"]
    return "\n  ".join([*lines, *timeline.missing])


def ledger_table(stage: str, ledger: Ledger) -> Table:
    """What a stage's peak was made of, beside what each kind of memory may take."""
    table = Table(title=f"Memory of {stage} at its peak, MiB", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "measured", "budget", "verdict"):
        table.add_column(name, justify="right" if name in ("measured", "budget") else "left")
    for row in ledger.rows:
        sizes = (None if size is None else f"{size / MIB:,.1f}" for size in (row.measured_bytes, row.budget_bytes))
        table.add_row(row.name, *sizes, row.verdict)
    return table


def validation_line(what: str, training: Training, naive: float) -> str:
    """How good a training's best epoch is, beside the naive baseline."""
    found = training.validation
    risks = ", ".join(f"{quantile_name(quantile)} {risk:.4f}" for quantile, risk in found.q_risk.items())
    best = f"best epoch {training.best_epoch}" if training.best_epoch else "no epoch was better than the model it began with"
    return (
        f"{what}: {training.updates} updates at {training.samples_per_s:.0f} windows/s; {best}: "
        f"q-risk {risks} (naive P50 {naive:.4f}), coverage {found.coverage:.3f}"
    )


def pruned_summary(weights: Mapping[str, float], keep: int) -> dict[str, dict[str, float]]:
    """The variables that pruning kept and those it left out, with their mean selection weights, for summary.json.

    Args:
        weights: of every variable, the heaviest first.
        keep: how many of them were kept.
    """
    return {"kept": dict(islice(weights.items(), keep)), "dropped": dict(islice(weights.items(), keep, None))}


def pruned_line(summary: Mapping[str, Any]) -> str:
    """What pruning kept and what it cost, of summary.json."""
    found = summary["prune"]
    kept, count = found["kept"], len(found["kept"]) + len(found["dropped"])
    losses = f"{summary['val']['loss']:.5f} before, {found['start_loss']:.5f} right after, {found['val']['loss']:.5f} trained on"
    heaviest = ", ".join(islice(kept, NAMED)) + (", …" if len(kept) > NAMED else "")
    share = f"with {sum(kept.values()):.1%} of the selection weight ({heaviest})"
    return f"pruned: {len(kept)} of {count} history variables kept, {share}; quantile loss {losses}"


def tables_line(curves: Sequence[TabulatedVariable]) -> str:
    """How many knots the curves came to, and which of them the most knots do not follow closely enough."""
    worst = max(curves, key=lambda curve: curve.error)
    knots = sum(curve.knots for curve in curves)
    distance = f"farthest from its curve {worst.error:.2g} ({worst.name})" if worst.error else "as trained"
    line = f"tables: {knots} knots of {len(curves)} variables, {distance}"
    far = [f"{curve.name} {curve.error:.2g}" for curve in curves if curve.error > TOLERANCE]
    return line if not far else f"{line}; warning: above the tolerance of {TOLERANCE} with {KNOT_COUNTS[-1]} knots: {', '.join(far)}"


def tables_summary(curves: Sequence[TabulatedVariable]) -> dict[str, object]:
    """The same for summary.json."""
    return {
        "variables": len(curves),
        "knots": sum(curve.knots for curve in curves),
        "worst_curve_error": max(curve.error for curve in curves),
        "above_tolerance": [curve.name for curve in curves if curve.error > TOLERANCE],
    }


def sensitivity_table(found: Sensitivity) -> Table:
    """The layers that lose most by being quantized."""
    table = Table(title=f"Each layer quantized alone, on {found.windows} training windows", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("layer", "weights", "weight SNR, dB", "input SNR, dB", "quantile loss", "above FP32"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in found.layers[:TOLD_LAYERS]:
        noises = (decibels(noise) for noise in (layer.weight_snr_db, layer.input_snr_db))
        table.add_row(layer.layer, f"{layer.weights:,}", *noises, f"{layer.loss:.5f}", f"{layer.effect:+.3%}")
    if (rest := len(found.layers) - TOLD_LAYERS) > 0:
        table.add_row(f"and {rest} that lose less", *5 * [""])
    table.add_row("everything", "", "", "", f"{found.quantized_loss:.5f}", f"{found.above_float(found.quantized_loss):+.3%}")
    return table


def decibels(noise: float | None) -> str:
    """A signal to noise ratio in dB; a dash where there is none."""
    return "–" if noise is None else f"{noise:.1f}"


def budget_line(found: Sensitivity) -> str:
    """What it took to keep the loss budget."""
    assert found.budget is not None
    quantized, kept = found.above_float(found.quantized_loss), found.above_float(found.loss)
    line = f"loss budget {found.budget:.3%} above FP32: everything quantized {quantized:+.3%}"
    return (
        f"{line}; in floating point stay {', '.join(found.kept_float)}: {kept:+.3%}"
        if found.kept_float
        else f"{line}, so nothing stays in float"
    )


def exported_table(exported: Mapping[Format, Exported], naive: float) -> Table:
    """Size, cost and quality of the exported models, measured in ONNX Runtime; a column a model, so that it fits a plain terminal."""
    table = Table(title="Measured in ONNX Runtime, on the validation windows")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    any_int4 = any(model.proof.census.int4_weight_share for model in exported.values())
    any_kept = any(model.proof.census.kept_float for model in exported.values())
    any_gpu = any(model.proof.gpu for model in exported.values())
    for kind, model in exported.items():
        table.add_column(kind, justify="right")
        cost, census, quality = model.proof.cost, model.proof.census, model.quality
        entries = {
            "file": f"{model.file_bytes / 1e6:.2f} MB",
            "resident": f"{cost['rss_bytes'] / 1e6:.0f} MB",
            "latency, batch 1": f"{cost['latency_ms']:.2f} ms",
            f"P50 q-risk (naive {naive:.4f})": f"{quality.q_risk[0.5]:.4f}",
            **({} if model.test is None else {"P50 q-risk, test part": f"{model.test.q_risk[0.5]:.4f}"}),
            "quantile loss": f"{quality.loss:.5f}",
            "integer products": str(sum(census.integer_products.values())),
            "weights in INT8": f"{census.int8_weight_share:.0%}",
            **({"weights in INT4": f"{census.int4_weight_share:.0%}"} if any_int4 else {}),
            **({"on a GPU": _on_gpu(model.proof.gpu)} if any_gpu else {}),
            **({"layers kept in float": str(len(census.kept_float))} if any_kept else {}),
        }
        for name, value in entries.items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        table.add_row(name, *values)
    return table


def _on_gpu(found: dict[str, Any] | None) -> str:
    """What a session costs on a GPU; the report says why where it was not measured."""
    if found is None:
        return "–"
    if "skipped" in found:
        return "not measured"
    size, latency = found["cost"]["device_bytes"], found["cost"]["latency_ms"]
    return f"{latency:.2f} ms" if size is None else f"{size / 1e6:.0f} MB, {latency:.2f} ms"
