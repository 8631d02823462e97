"""What a run of an ensemble prints: its plan before, and a summary after."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from tftq.console import Console
from tftq.ensemble.ensemble import OK
from tftq.ensemble.prepare import Prepared
from tftq.ensemble.recipe import OWN
from tftq.ensemble.residency import MEGA
from tftq.spec.summary import EnsembleSummary


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


def print_summary(console: Console, summary: EnsembleSummary) -> None:
    """Print how the run went, as a table and a line."""
    latency, memory = summary.latency_ms, summary.memory
    table = Table(title=f"{summary.bars} bars, {latency['median']:.1f} ms a bar (p99 {latency['p99']:.1f})")
    for heading in ("member", "answers", "without an answer"):
        table.add_column(heading)
    for heading in ("ms", "MB measured"):
        table.add_column(heading, justify="right")
    for name, member in summary.members.items():
        size = "–" if member.measured_bytes is None else f"{member.measured_bytes / MEGA:.1f}"
        table.add_row(name, str(member.states.get(OK, 0)), _without_answer(member.states), f"{member.latency_ms['median']:.2f}", size)
    resident = f"{memory['resident_bytes'] / MEGA:.1f}"
    table.add_row(OWN, str(summary.states.get(OK, 0)), _without_answer(summary.states), "", resident)
    console.print_table(table)
    if memory["evictions"]:
        loads, seconds = sum(memory["loads"].values()), memory["load_seconds"]
        console.print_line(f"{loads} loads in {seconds:.1f} s, {memory['evictions']} of them in place of another member")


def _without_answer(states: Mapping[str, int]) -> str:
    return ", ".join(f"{state} {count}" for state, count in states.items() if state != OK)
