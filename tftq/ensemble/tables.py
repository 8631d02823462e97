"""What a run of an ensemble prints: its plan before, and a summary after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from tftq.console import Console
from tftq.ensemble.ensemble import OK
from tftq.ensemble.prepare import Prepared
from tftq.ensemble.recipe import OWN
from tftq.ensemble.residency import MEGA


def planned_table(prepared: Prepared, budget: int) -> Table:
    """Make a table of what the members are planned to take.

    Args:
        prepared: the members.
        budget: in bytes.
    """
    table = Table(title=f"planned: {sum(prepared.planned.values()) / MEGA:.1f} MB of {budget / MEGA:.0f}")
    for heading in ("member", "kind", "file"):
        table.add_column(heading)
    for heading in ("lookback", "MB"):
        table.add_column(heading, justify="right")
    for member in prepared.members:
        size = f"{prepared.planned[member.name] / MEGA:.1f}"
        table.add_row(member.name, member.kind, member.files[0].name, str(member.interface.lookback), size)
    return table


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Print how the run went, as a table and a line."""
    table = Table(title=f"{summary['bars']} bars, {summary['latency_ms']['median']:.1f} ms a bar (p99 {summary['latency_ms']['p99']:.1f})")
    for heading in ("member", "answers", "without an answer"):
        table.add_column(heading)
    for heading in ("ms", "MB measured"):
        table.add_column(heading, justify="right")
    for name, member in summary["members"].items():
        others = ", ".join(f"{state} {count}" for state, count in member["states"].items() if state != OK)
        grown = member["measured_bytes"]
        size = "–" if grown is None else f"{grown / MEGA:.1f}"
        table.add_row(name, str(member["states"].get(OK, 0)), others, f"{member['latency_ms']['median']:.2f}", size)
    others = ", ".join(f"{state} {count}" for state, count in summary["states"].items() if state != OK)
    table.add_row(OWN, str(summary["states"].get(OK, 0)), others, "", f"{summary['memory']['resident_bytes'] / MEGA:.1f}")
    console.print_table(table)
    memory = summary["memory"]
    if memory["evictions"]:
        loads, seconds = sum(memory["loads"].values()), memory["load_seconds"]
        console.print_line(f"{loads} loads in {seconds:.1f} s, {memory['evictions']} of them in place of another member")
