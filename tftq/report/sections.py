"""How the run went: training, memory, data; and at the end what it ran on and with."""

from collections.abc import Callable
from typing import Any

from tftq.report.facts import Facts
from tftq.report.html import Html, join, listing, section, table, tag
from tftq.report.svg import bar_chart, line_chart
from tftq.report.verdict import MIB

QAT = "QAT"
_VALIDATING = ("VALIDATION_START", "VALIDATION_END", "AFTER_VALIDATION")  # a record's peak is of what led up to it


def curves(facts: Facts) -> Html:
    """Loss and learning rate, float training and QAT one after the other."""
    epochs = [(stage, epoch) for stage, lines in facts.stages.items() for epoch in lines]
    labels = [_epoch_label(stage, epoch["epoch"]) for stage, epoch in epochs]
    shade = (len(facts.stages["train"]), QAT) if "qat" in facts.stages else None

    def course(value: Callable[[dict[str, Any]], float | None]) -> list[float | None]:
        return [value(epoch) for _, epoch in epochs]

    losses = {
        "train": course(lambda epoch: epoch["train_loss"]),
        "validation": course(lambda epoch: None if epoch["val"] is None else epoch["val"]["loss"]),
    }
    names = {name: None for _, epoch in epochs for name in epoch["lr"]}
    rates = _merged({name: course(lambda epoch, name=name: epoch["lr"].get(name)) for name in names})  # type: ignore[misc]
    rows = [[label, *(_number(values[column]) for values in (*losses.values(), *rates.values()))] for column, label in enumerate(labels)]
    best = f"The weights of epoch {facts.summary['best_epoch']} were kept."
    quantized = " q1, q2, …: epochs of quantization-aware training (QAT), after it." if shade else ""
    skipped = facts.summary["skipped_updates"]
    overflowed = f" {skipped} FP16 updates overflowed and were skipped." if skipped else ""
    return section(
        "Training",
        tag(
            "div",
            line_chart("Quantile loss", losses, labels, axis="epoch", shade=shade),
            line_chart("Learning rate at each epoch's last update", rates, labels, axis="epoch", shade=shade),
            class_="side",
        ),
        tag("p", f"{best}{overflowed}{quantized} The training loss is a mean over the epoch, with dropout.", class_="soft"),
        tag(
            "details",
            tag("summary", "Every epoch in figures"),
            table(["epoch", "train loss", "validation loss", *(f"lr of {name}" for name in rates)], rows),
        ),
    )


def memory(facts: Facts) -> Html:
    """The peak beside the plan, what it is made of, and the course over the phases."""
    found = facts.summary["memory"]
    source = {"cuda": "PyTorch's allocator", "counter": "the byte counter", "rss": "the process as a whole"}[found["source"]]
    peak, planned = found["peak_bytes"], found["planned_peak_bytes"]
    measured = "not measured" if peak is None else f"{peak / MIB:,.1f} MiB"
    line = (
        f"Peak {measured} by {source}, planned {planned / MIB:,.1f} MiB, budget {facts.recipe['memory']['budget_mb']:,} MiB. "
        f"{found['checkpoints_recorded']} of {found['checkpoints_expected']} records."
    )
    missing = [tag("div", tag("p", "Missing records:"), listing(found["missing"]), class_="bad")] if found["missing"] else []
    shares = [[name, f"{size / MIB:,.1f}", f"{size / sum(found['components'].values()):.0%}"] for name, size in found["components"].items()]
    parts = tag(
        "div",
        tag("h3", "What the training peak is made of"),
        table(["", "MiB", "share"], shares),
        tag("p", "Parameters and optimizer as counted after training, the rest as planned.", class_="soft"),
    )
    phases = tag("div", tag("h3", "Highest peak leading up to each phase"), _phases(facts))
    return section("Memory", tag("p", line), *missing, tag("div", tag("div", _course(facts, planned), parts), phases, class_="side"))


def data(facts: Facts) -> Html:
    """The ranges of the parts, and what was dropped."""
    return section("Data", tag("p", facts.recipe["data"]["path"], class_="soft"), listing(facts.summary["notes"]))


def environment(facts: Facts) -> Html:
    """What the figures depend on beside the recipe."""
    found = facts.environment
    rows = [[name, _plain(value)] for name, value in found.items() if name != "packages"]
    packages = [[name, version] for name, version in found["packages"].items()]
    tables = [table(["", ""], part, class_="words") for part in (rows, packages)]
    return section("Environment", tag("div", *tables, class_="side"))


def recipe(facts: Facts) -> Html:
    """The resolved recipe."""
    return section("Recipe", tag("pre", facts.recipe_text))


def _course(facts: Facts, planned: int) -> Html:
    """A bar for each record."""
    records = facts.records
    groups: dict[str, list[float | None]] = {name: [None] * len(records) for name in ("training", "validation", "other")}
    for column, record in enumerate(records):
        peak = _peak(record)
        groups[_group(record["phase"])][column] = None if peak is None else peak / MIB
    labels = {
        column: _epoch_label(record["stage"], record["epoch"]) for column, record in enumerate(records) if record["phase"] == "EPOCH_START"
    }
    quantized = [column for column, record in enumerate(records) if record["stage"] == "qat"]
    return bar_chart(
        "Peak before each record, MiB",
        groups,
        labels,
        axis="epoch",
        line=(planned / MIB, f"planned {planned / MIB:,.0f}"),
        shade=(quantized[0], QAT) if quantized else None,
    )


def _phases(facts: Facts) -> Html:
    """The highest peak of each phase over the epochs, a column for each stage."""
    stages = list(dict.fromkeys(record["stage"] for record in facts.records))
    highest: dict[str, dict[str, int]] = {}
    for record in facts.records:
        peaks = highest.setdefault("TRAIN_BATCH" if record["phase"].startswith("TRAIN_BATCH") else record["phase"], {})
        peak = _peak(record)
        if peak is not None:
            peaks[record["stage"]] = max(peak, peaks.get(record["stage"], 0))
    rows = [[phase, *(f"{peaks[stage] / MIB:,.1f}" if stage in peaks else "–" for stage in stages)] for phase, peaks in highest.items()]
    return table(["", *(f"{stage}, MiB" for stage in stages)], rows)


def _peak(record: dict[str, Any]) -> int | None:
    """What a record says of the peak: of tensors, or of the process where nothing counts those."""
    peak: int | None = record["rss" if record["source"] == "rss" else "peak"]
    return peak


def _group(phase: str) -> str:
    if phase.startswith("TRAIN_BATCH") or phase == "AFTER_TRAINING":
        return "training"
    return "validation" if phase in _VALIDATING else "other"


def _epoch_label(stage: str, epoch: int) -> str:
    return str(epoch) if stage == "train" else f"q{epoch}"


def _merged(series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Series that never differ as one, so that no line hides another."""
    names: dict[tuple[float | None, ...], list[str]] = {}
    for name, values in series.items():
        names.setdefault(tuple(values), []).append(name)
    return {", ".join(together): list(values) for values, together in names.items()}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _plain(value: object) -> object:
    """A value of env.json in words."""
    if isinstance(value, dict):
        return join([f"{name} {_plain(inner)}" for name, inner in value.items()], ", ")
    return {None: "none", True: "yes", False: "no"}.get(value, value) if value is None or isinstance(value, bool) else value
