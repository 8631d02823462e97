"""Compute a page's section on memory: the course over the records, and the ledger of each stage."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from tftq.memory.ledger import COMPONENTS, MemoryLedger, Record, Stack, ledgers, stack_of
from tftq.report.chart import bar_chart
from tftq.report.run_files import RunFiles
from tftq.report.training import epoch_label, stage_shades
from tftq.spec.units import MIB

BUDGET_IN_SIGHT = 2  # a budget more than this many times the highest bar is not drawn: the bars would be lost below it
SOURCES = {"cuda": "PyTorch's allocator", "counter": "the byte counter", "rss": "the process as a whole"}


@dataclass(frozen=True)
class MemoryUse:
    """The memory that a run held.

    Attributes:
        source: how it was measured.
        chart: the peak of each record.
        ledgers: stage -> its ledger.
        components: names of a peak's components.
        phases: each phase's name, and the components of its highest peak, the sum last.
    """

    source: str
    chart: Markup
    ledgers: Mapping[str, MemoryLedger]
    components: list[str]
    phases: list[tuple[str, list[int | None]]]


def memory_use(files: RunFiles) -> MemoryUse:
    """Summarize the memory records of a run."""
    by_stage = ledgers(files.records, files.recipe["memory"]["budget_mb"])
    return MemoryUse(
        SOURCES[files.summary["memory"]["source"]],
        _chart(files),
        by_stage,
        [name.replace("_", " ") for name in COMPONENTS],
        [
            (f"{stage} {phase}", [*(stack[name] for name in COMPONENTS), _total(stack)])
            for stage, ledger in by_stage.items()
            for phase, stack in ledger.phases.items()
        ],
    )


def _chart(files: RunFiles) -> Markup:
    """Draw a bar per record, stacked by the components of its peak."""
    planned, budget_mib = files.summary["memory"]["planned_peak_bytes"], files.recipe["memory"]["budget_mb"]
    stacks = [_stack(record) for record in files.records]
    groups = {name: [None if (size := stack[name]) is None else size / MIB for stack in stacks] for name in stacks[0]}
    shown = {name.replace("_", " "): values for name, values in groups.items() if any(values)} or groups
    highest = max((sum(filter(None, stack.values())) for stack in stacks), default=0)
    marks = {f"planned {planned / MIB:,.0f}": planned / MIB}
    if budget_mib * MIB <= BUDGET_IN_SIGHT * max(highest, planned):
        marks[f"budget {budget_mib:,}"] = budget_mib
    labels = {
        column: epoch_label(record["stage"], record["epoch"])
        for column, record in enumerate(files.records)
        if record["phase"] == "EPOCH_START"
    }
    shades = stage_shades([record["stage"] for record in files.records])
    return bar_chart("What each record's peak was made of, MiB", shown, labels, axis="epoch", marks=marks, shades=shades)


def _stack(record: Record) -> dict[str, int | None]:
    """Return the components of a record's peak, or the peak itself if its components are unknown."""
    stack = stack_of(record)
    whole = record["rss" if record["source"] == "rss" else "peak"]
    return {**stack, "not broken down": whole if not any(stack.values()) else None}


def _total(stack: Stack) -> int | None:
    known = [size for size in stack.values() if size is not None]
    return sum(known) if known else None
