"""Print the plan of an ensemble's run before it, and a summary after."""

from __future__ import annotations

from collections.abc import Mapping

from tftq.console import Console
from tftq.ensemble.ensemble import OK
from tftq.ensemble.prepare import Prepared
from tftq.ensemble.recipe import OWN
from tftq.spec.summary import EnsembleSummary
from tftq.spec.units import MIB


def planned_lines(prepared: Prepared, budget: int) -> str:
    """List the members' planned memory; plain text, since rich would take 8 MB beside the members.

    Args:
        prepared: the members.
        budget: in bytes.
    """
    rows = [("member", "kind", "file", "lookback", "MiB")]
    for member in prepared.members:
        size = f"{prepared.planned[member.name] / MIB:.1f}"
        rows.append((member.name, member.kind, member.files[0].name, str(member.interface.lookback), size))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        [cell.ljust(width) if place < 3 else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    title = f"planned: {sum(prepared.planned.values()) / MIB:.1f} MiB of {budget / MIB:.0f}"
    return "\n".join([f"  {title}", *(f"  {'  '.join(row)}" for row in aligned)])


def print_summary(console: Console, summary: EnsembleSummary) -> None:
    """Print the result of the run, as a table and a line."""
    from rich.table import Table

    latency, memory = summary.latency_ms, summary.memory
    table = Table(title=f"{summary.bars} bars, {latency['median']:.1f} ms a bar (p99 {latency['p99']:.1f})")
    for heading in ("member", "answers", "without an answer"):
        table.add_column(heading)
    for heading in ("ms", "MiB measured"):
        table.add_column(heading, justify="right")
    for name, member in summary.members.items():
        size = "–" if member.measured_bytes is None else f"{member.measured_bytes / MIB:.1f}"
        table.add_row(name, str(member.states.get(OK, 0)), _without_answer(member.states), f"{member.latency_ms['median']:.2f}", size)
    resident = f"{memory['resident_bytes'] / MIB:.1f}"
    table.add_row(OWN, str(summary.states.get(OK, 0)), _without_answer(summary.states), "", resident)
    console.print_table(table)
    if memory["evictions"]:
        loads, seconds = sum(memory["loads"].values()), memory["load_seconds"]
        console.print_line(f"{loads} loads in {seconds:.1f} s, {memory['evictions']} of them in place of another member")


def _without_answer(states: Mapping[str, int]) -> str:
    return ", ".join(f"{state} {count}" for state, count in states.items() if state != OK)
