"""The exported models side by side, and what each proved at the gate."""

from collections.abc import Callable
from typing import Any

from tftq.report.facts import Facts
from tftq.report.html import Html, join, section, table, tag
from tftq.report.nodes import nodes_in_words
from tftq.report.svg import line_chart
from tftq.report.verdict import MB, naive_risk
from tftq.spec.quantiles import quantile_name

Q_RISK = "q-risk = 2·Σ pinball / Σ|y| over all validation windows and steps, lower is better (naive P50: Σ|y − naive| / Σ|y|)."
SELECTED = "The best epoch was chosen by these windows too, so expect a little less of new data."

STREAM = "stream is two files, counted together: its latency is that of a new bar, its load and memory those of both sessions."


def models(facts: Facts) -> Html:
    """One column for each model, measured in ONNX Runtime on the same windows."""
    found, naive = facts.summary["models"], naive_risk(facts)
    if not found:
        return section("Exported models", tag("p", "None."), tag("p", Q_RISK, class_="soft"))
    first = next(iter(found.values()))

    def row(name: str, key: str, form: Callable[[Any], str], *, compare: bool = False) -> list[object]:
        return [name, *(_compared(form(model[key]), model[key], first[key], compare and model is not first) for model in found.values())]

    risks: list[list[object]] = [
        [f"{quantile_name(float(level))} q-risk", *(f"{model['q_risk'][level]:.4f}" for model in found.values())]
        for level in first["q_risk"]
    ]
    against = [f"{model['q_risk']['0.5'] / naive - 1:+.1%}" if naive else "–" for model in found.values()]
    rows: list[list[object]] = [
        row("file", "file_bytes", lambda size: f"{size / MB:.2f} MB", compare=True),
        row("resident memory", "rss_bytes", lambda size: f"{size / MB:.1f} MB", compare=True),
        row("latency, batch 1", "latency_ms", lambda time: f"{time:.2f} ms", compare=True),
        row("load", "load_ms", lambda time: f"{time:.0f} ms"),
        *risks,
        ["naive P50 q-risk", *(f"{naive:.4f}" for _ in found)],
        ["P50 against naive", *against],
        row("quantile loss", "loss", lambda loss: f"{loss:.5f}", compare=True),
        row("coverage", "coverage", lambda share: f"{share:.1%}"),
        ["integer products", *(_integers(facts, kind) for kind in found)],
        row("INT8 share of weights", "int8_weight_share", lambda share: f"{share:.1%}"),
        *([row("INT4 share of weights", "int4_weight_share", lambda share: f"{share:.1%}")] if any(map(_int4, found.values())) else []),
        *([row("layers kept in floating point", "kept_float", lambda names: str(len(names)))] if any(map(_kept, found.values())) else []),
        row("largest difference from torch", "max_abs_diff", lambda size: f"{size:.2g}"),
        row("nodes of the graph", "nodes", nodes_in_words),
        *_on_gpu(found),
    ]
    shares = f"Percentages below a figure are of {next(iter(found))}'s. The difference from torch is in the target's unit."
    notes = " ".join([Q_RISK, shares, SELECTED, *([STREAM] if "stream" in found else []), *_gpu_notes(found)])
    return section("Exported models", table(["", *found], rows), tag("p", notes, class_="soft"), _by_step(found))


def _on_gpu(found: dict[str, Any]) -> list[list[object]]:
    """Rows of what the models cost on a GPU, where any of them was measured there."""
    measured = {kind: model["gpu"] for kind, model in found.items() if "cost" in model.get("gpu", {})}
    if not measured:
        return []

    def row(name: str, form: Callable[[dict[str, Any]], str]) -> list[object]:
        return [f"on the GPU: {name}", *(form(measured[kind]) if kind in measured else "–" for kind in found)]

    def memory(gpu: dict[str, Any]) -> str:
        size = gpu["cost"]["device_bytes"]
        return "unknown" if size is None else f"{size / MB:.1f} MB"

    return [
        row("memory of the session", memory),
        row("latency, batch 1", lambda gpu: f"{gpu['cost']['latency_ms']:.2f} ms"),
        row("nodes", lambda gpu: nodes_in_words(gpu["nodes"])),
    ]


def _gpu_notes(found: dict[str, Any]) -> list[str]:
    """How memory on the GPU was read, and why models that are for one were not measured there."""
    notes = []
    for kind, gpu in ((kind, model["gpu"]) for kind, model in found.items() if "gpu" in model):
        if "skipped" in gpu:
            notes.append(f"{kind} was not measured on a GPU: {gpu['skipped']}.")
        else:
            context = gpu["cost"]["context_bytes"]
            own = "" if context is None else f", beside the {context / MB:.0f} MB of CUDA itself"
            notes.append(f"Memory of {kind} on the GPU is {gpu['cost']['device_bytes_are']}{own}.")
    return notes


def _by_step(found: dict[str, Any]) -> Html:
    """The q-risk of each quantile over the horizon, a chart for each with a line for each model."""
    levels = next(iter(found.values()))["q_risk_by_step"]
    steps = [str(step) for step in range(1, 1 + len(next(iter(levels.values()))))]
    charts = [
        line_chart(
            f"{quantile_name(float(level))} q-risk at each step",
            {kind: model["q_risk_by_step"][level] for kind, model in found.items()},
            steps,
            axis="step of the horizon",
        )
        for level in levels
    ]
    return tag("details", tag("summary", "Each step of the horizon"), tag("div", *charts, class_="side"))


def gate(facts: Facts) -> Html:
    """Every property that was checked before a model got its name."""
    parts = []
    for kind, proof in facts.proofs.items():
        rows = [[check["name"], _measured(check), _passed(check["passed"])] for check in proof["checks"]]
        products = ", ".join(f"{count} {name}" for name, count in proof["census"]["integer_products"].items()) or "none"
        census = proof["census"]
        kept = f" Kept in floating point: {', '.join(census['kept_float'])}." if _kept(census) else ""
        note = f"Integer products: {products}. Products of float weights: {census['float_weight_products']}.{kept}"
        parts.append(tag("div", tag("h3", kind), table(["check", "measured, allowed", ""], rows), tag("p", note, class_="soft")))
    return section("The gate", tag("div", *parts, class_="side") if parts else tag("p", "No exported model, so nothing was checked."))


def _measured(check: dict[str, Any]) -> Html:
    return join([f"{check['measured']:.3g}", tag("small", check["allowed"])])


def _compared(text: str, value: float, first: float, compare: bool) -> object:
    return join([text, tag("small", f"{value / first:.1%}")]) if compare else text


def _integers(facts: Facts, kind: str) -> str:
    """How many of the products with weights run in integers, as "20 of 20"; without those of layers that were to stay in float."""
    if kind not in facts.proofs:
        return "–"
    census = facts.proofs[kind]["census"]
    count = sum(census["integer_products"].values())
    return f"{count} of {count + census['float_weight_products']}"


def _int4(entry: dict[str, Any]) -> bool:
    """Whether some of a model's weights are stored in four bits."""
    return bool(entry.get("int4_weight_share"))  # runs of older versions stored nothing in four bits


def _kept(entry: dict[str, Any]) -> bool:
    """Whether layers of a model stayed in floating point where the others were quantized."""
    return bool(entry["kept_float"])


def _passed(passed: bool) -> Html:
    return tag("span", "passed" if passed else "FAILED", class_="good" if passed else "bad")
