"""The memory ledger of a run: the components of each phase's peak beside their budgets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tftq.spec.units import MIB

COMPONENTS = ("parameters", "gradients", "optimizer", "activations", "workspace", "left_over")
"""What the bytes at a peak are for; left over is what is still there afterwards and belongs to none of the others."""

# The budgets this project began with, MiB. No run fails for them; memory.budget_mb limits a run as a whole.
BUDGETS_MB = {"parameters": 300, "forward": 200, "backward": 200, "optimizer": 200}
PEAK_MB = 1000  # or memory.budget_mb where that is less
_PARTS = {
    "parameters": ("parameters",),
    "forward": ("activations", "workspace"),
    "backward": ("gradients",),
    "optimizer": ("optimizer",),
    "left over": ("left_over",),
}

Stack = Mapping[str, int | None]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """The largest use of one component of memory during a stage.

    Attributes:
        name: parameters, forward (activations and workspace), backward (gradients), optimizer, left over; or peak, of all together. The
            components need not have been largest at once, so that they do not add up to the peak.
        measured_bytes: at the record with the most; None where it was not measured.
        budget_bytes: its limit; None where it has no budget.
    """

    name: str
    measured_bytes: int | None
    budget_bytes: int | None

    @property
    def verdict(self) -> str:
        """Return whether the row stays within its budget, in a few words."""
        if self.measured_bytes is None:
            return "not measured"
        if self.budget_bytes is None:
            return ""
        beyond = self.measured_bytes - self.budget_bytes
        return "within" if beyond <= 0 else f"over by {beyond / MIB:,.1f}"


@dataclass(frozen=True)
class MemoryLedger:
    """The memory ledger of one stage of training.

    Attributes:
        rows: each component with its budget.
        phases: phase -> the components of its highest peak; a phase's peak covers the work up to its record.
    """

    rows: list[Row]
    phases: dict[str, Stack]

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain types, for summary.json."""
        return {"rows": [{**asdict(row), "verdict": row.verdict} for row in self.rows], "phases": self.phases}


def read_records(path: Path) -> list[Record]:
    """Read the lines of a memory.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ledgers(records: Sequence[Record], budget_mb: int) -> dict[str, MemoryLedger]:
    """Build the ledger of each stage that has records.

    Args:
        records: of memory.jsonl.
        budget_mb: of the recipe.
    """
    stages = dict.fromkeys(record["stage"] for record in records)
    return {stage: _ledger([record for record in records if record["stage"] == stage], budget_mb) for stage in stages}


def stack_of(record: Record) -> dict[str, int | None]:
    """Split a record's peak into components; None for those not measured.

    A GPU's allocator does not report the components of its peak: there, parameters, gradients, optimizer and left over are those that were
    live at the record, and the rest of the peak counts as activations, the workspace among them.
    """
    if record["peak_components"] is not None:
        return {name: record["peak_components"][name] for name in COMPONENTS}
    live, peak = record["components"], record["peak"]
    if live is None or peak is None:
        return dict.fromkeys(COMPONENTS)
    return {**dict.fromkeys(COMPONENTS), **live, "activations": peak - sum(live.values())}


def stack_at_peak(records: Sequence[Record]) -> dict[str, int | None]:
    """Split the highest peak of some records into components; on a GPU, with the most gradients that were live at any of them."""
    highest = max(records, key=lambda record: record["peak"] or 0, default=None)
    if highest is None:
        return dict.fromkeys(COMPONENTS)
    stack = stack_of(highest)
    activations, gradients = stack["activations"], stack["gradients"]
    if highest["peak_components"] is None and activations is not None and gradients is not None:
        most = max(record["components"]["gradients"] for record in records if record["components"] is not None)
        stack |= {"gradients": most, "activations": max(activations - (most - gradients), 0)}
    return stack


def _ledger(records: Sequence[Record], budget_mb: int) -> MemoryLedger:
    rows = []
    for name, parts in _PARTS.items():
        budget = BUDGETS_MB.get(name)
        rows.append(Row(name, _most(records, parts), None if budget is None else budget * MIB))
    peak = max((record["peak"] for record in records if record["peak"] is not None), default=None)
    rows.append(Row("peak", peak, min(PEAK_MB, budget_mb) * MIB))
    phases = dict.fromkeys(_phase(record) for record in records)
    return MemoryLedger(rows, {phase: stack_at_peak([record for record in records if _phase(record) == phase]) for phase in phases})


def _most(records: Sequence[Record], parts: Sequence[str]) -> int | None:
    """Return the most bytes of some components together, at a record's peak or live at a record; None where no record has any."""
    stacks = [stack for record in records for stack in (stack_of(record), record["components"] or {})]
    sums = [sum(known) for stack in stacks if (known := [size for part in parts if (size := stack.get(part)) is not None])]
    return max(sums, default=None)


def _phase(record: Record) -> str:
    return "TRAIN_BATCH" if record["phase"].startswith("TRAIN_BATCH") else record["phase"]
