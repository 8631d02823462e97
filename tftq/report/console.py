"""Lines and tables that the run of a forecaster prints."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.export.forecaster import Exported
from tftq.memory.ledger import MemoryLedger
from tftq.memory.timeline import Timeline
from tftq.model.tabulate import KNOT_COUNTS, TOLERANCE, TabulatedVariable
from tftq.plan.training import StagePlan
from tftq.quant.sensitivity import Sensitivity
from tftq.report.page import mebibytes, megabytes, number
from tftq.spec.formats import Format
from tftq.spec.quantiles import quantile_name
from tftq.spec.summary import FineTuningSummary
from tftq.spec.units import MIB
from tftq.train.state import Training

PRINTED_LAYERS = 10  # those with the largest effect; the report shows all of them
PRINTED_VARIABLES = 5  # the heaviest; summary.json and the report have all of them


def planned_line(stage: str, plan: StagePlan, budget_mb: int) -> str:
    """Describe the planned peak of a stage."""
    parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in plan.update.components.items() if size)
    return f"planned peak of {stage}: {plan.update.peak_bytes / MIB:.0f} of {budget_mb} MiB ({parts})"


def memory_line(timeline: Timeline, planned: int) -> str:
    """Describe the measured peak beside the planned one, in bytes, and list the records that are missing."""
    peak = timeline.peak_bytes
    measured = "not measured" if peak is None else f"{peak / MIB:.0f} MiB"
    lines = [f"memory peak {measured} (planned {planned / MIB:.0f}), {timeline} records"]
    return "\n  ".join([*lines, *timeline.missing])


def ledger_table(stage: str, ledger: MemoryLedger) -> Table:
    """Make a table of the components of a stage's peak, beside their budgets."""
    table = Table(title=f"Memory of {stage} at its peak, MiB", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "measured", "budget", "verdict"):
        table.add_column(name, justify="right" if name in ("measured", "budget") else "left")
    for row in ledger.rows:
        table.add_row(row.name, mebibytes(row.measured_bytes), mebibytes(row.budget_bytes), row.verdict)
    return table


def validation_line(what: str, training: Training, naive: float) -> str:
    """Describe the best epoch of a training beside the naive forecast."""
    risks = ", ".join(f"{quantile_name(quantile)} {risk:.4f}" for quantile, risk in training.validation.q_risk.items())
    best = f"best epoch {training.best_epoch}" if training.best_epoch else "no epoch was better than the model it began with"
    return (
        f"{what}: {training.updates} updates at {training.samples_per_s:.0f} windows/s; {best}: "
        f"q-risk {risks} (naive P50 {naive:.4f}), coverage {training.validation.coverage:.3f}"
    )


def pruned_line(before: float, pruned: FineTuningSummary) -> str:
    """Describe the variables that pruning kept, and its cost.

    Args:
        before: the loss of the model that was pruned.
        pruned: the stage, with its variables.
    """
    assert pruned.kept is not None and pruned.dropped is not None
    kept, count = pruned.kept, len(pruned.kept) + len(pruned.dropped)
    losses = f"{before:.5f} before, {pruned.training.start_loss:.5f} right after, {pruned.training.val.loss:.5f} trained on"
    heaviest = ", ".join(islice(kept, PRINTED_VARIABLES)) + (", …" if len(kept) > PRINTED_VARIABLES else "")
    share = f"with {sum(kept.values()):.1%} of the selection weight ({heaviest})"
    return f"pruned: {len(kept)} of {count} history variables kept, {share}; quantile loss {losses}"


def tables_line(curves: Sequence[TabulatedVariable]) -> str:
    """Describe the knots of all curves; warn of curves that even the most knots do not follow within the tolerance."""
    worst = max(curves, key=lambda curve: curve.error)
    knots = sum(curve.knots for curve in curves)
    distance = f"farthest from its curve {worst.error:.2g} ({worst.name})" if worst.error else "as trained"
    line = f"tables: {knots} knots of {len(curves)} variables, {distance}"
    far = [f"{curve.name} {curve.error:.2g}" for curve in curves if curve.error > TOLERANCE]
    return line if not far else f"{line}; warning: above the tolerance of {TOLERANCE} with {KNOT_COUNTS[-1]} knots: {', '.join(far)}"


def sensitivity_table(sensitivity: Sensitivity) -> Table:
    """Make a table of the layers that lose most by being quantized."""
    table = Table(title=f"Each layer quantized alone, on {sensitivity.windows} training windows", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("layer", "weights", "weight SNR, dB", "input SNR, dB", "quantile loss", "above FP32"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in sensitivity.layers[:PRINTED_LAYERS]:
        noises = (number(noise, ".1f") for noise in (layer.weight_snr_db, layer.input_snr_db))
        table.add_row(layer.layer, f"{layer.weights:,}", *noises, f"{layer.loss:.5f}", f"{layer.effect:+.3%}")
    if (rest := len(sensitivity.layers) - PRINTED_LAYERS) > 0:
        table.add_row(f"and {rest} that lose less", *5 * [""])
    loss = sensitivity.quantized_loss
    table.add_row("everything", "", "", "", f"{loss:.5f}", f"{sensitivity.above_float(loss):+.3%}")
    return table


def budget_line(sensitivity: Sensitivity) -> str:
    """Describe the layers that stay in floating point to keep the loss budget."""
    assert sensitivity.budget is not None
    quantized, kept = sensitivity.above_float(sensitivity.quantized_loss), sensitivity.above_float(sensitivity.loss)
    line = f"loss budget {sensitivity.budget:.3%} above FP32: everything quantized {quantized:+.3%}"
    if not sensitivity.kept_float:
        return f"{line}, so nothing stays in floating point"
    return f"{line}; with {', '.join(sensitivity.kept_float)} in floating point {kept:+.3%}"


def exported_table(exported: Mapping[Format, Exported], naive: float) -> Table:
    """Make a table of size, cost and quality of the exported models, a column each, so that it fits a plain terminal."""
    table = Table(title="Measured in ONNX Runtime, on the validation windows")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    any_int4 = any(model.proof.census.int4_weight_share for model in exported.values())
    any_kept = any(model.proof.census.kept_float for model in exported.values())
    any_gpu = any(model.proof.gpu for model in exported.values())
    for format, model in exported.items():
        table.add_column(format, justify="right")
        cost, census, quality = model.proof.cost, model.proof.census, model.quality
        entries = {
            "file": megabytes(model.file_bytes, ".2f"),
            "resident": megabytes(cost["rss_bytes"], ".0f"),
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


def _on_gpu(measured: dict[str, Any] | None) -> str:
    """Describe the cost of a session on a GPU; the report has the reason where it was not measured."""
    if measured is None:
        return "–"
    if "skipped" in measured:
        return "not measured"
    size, latency = measured["cost"]["device_bytes"], measured["cost"]["latency_ms"]
    return f"{latency:.2f} ms" if size is None else f"{megabytes(size, '.0f')}, {latency:.2f} ms"
