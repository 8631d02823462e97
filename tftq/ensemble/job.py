"""The members of an ensemble asked at every bar of a file or of standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

from tftq.console import Console, Messages
from tftq.data.files import duration, iso
from tftq.ensemble.answer_log import as_document
from tftq.ensemble.backtest import Backtest, backtest
from tftq.ensemble.checkpoint import read
from tftq.ensemble.ensemble import OK, Council
from tftq.ensemble.feed import bars_of_file, bars_of_lines
from tftq.ensemble.loop import Session
from tftq.ensemble.market import Market
from tftq.ensemble.member import Member, open_member, planned_bytes
from tftq.ensemble.recipe import OWN, BarsToAnswer, EnsembleRecipe
from tftq.ensemble.report import write_report
from tftq.ensemble.residency import MEGA, Residency
from tftq.errors import EnsembleError, TooFewBarsError
from tftq.jobs.environment import Device, environment
from tftq.jobs.folder import RunFolder
from tftq.serve.resident import resident_bytes

SAVE_EVERY_OF_FILE, SAVE_EVERY_OF_STREAM = 500, 1  # bars
SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True)
class Prepared:
    """The members before any is loaded, and what they have in common.

    Attributes:
        members: in the recipe's order.
        planned: member -> resident bytes.
        step: between bars, in nanoseconds.
        time_zone: of the clock columns; None is UTC.
        trained_until: the time of the last bar that any was trained on, in nanoseconds UTC, as far as their files say.
        unsaid: members whose files do not say it.
        notes: what a user should know.
    """

    members: list[Member]
    planned: Mapping[str, int]
    step: int
    time_zone: str | None
    trained_until: int | None
    unsaid: list[str]
    notes: list[str]

    @property
    def lookback(self) -> int:
        """The most bars that any looks back."""
        return max(member.interface.lookback for member in self.members)


def prepare(recipe: EnsembleRecipe) -> Prepared:
    """Find the members and learn what they want and will take; nothing is loaded.

    Raises:
        EnsembleError: some cannot serve, each on a line, they do not want the same bars, or what one takes cannot be measured.
    """
    members, refused = [], []
    for name, part in recipe.members.items():
        try:
            members.append(open_member(name, part, threads=recipe.threads // recipe.at_once, shared=recipe.memory.shared))
        except EnsembleError as error:
            refused.append(str(error))
    if refused:
        raise EnsembleError("\n".join(refused))
    steps = {member.name: member.interface.step for member in members if member.interface.step is not None}
    if recipe.data.step_s is not None:
        steps = {"data.step_s": round(recipe.data.step_s * SECOND), **steps}
    if not steps:
        raise EnsembleError("no member says how far apart its bars are; say it with data.step_s, as 60 for bars of a minute")
    if len(set(steps.values())) > 1:
        raise EnsembleError(f"one step between bars is wanted; found: {_listed({name: duration(step) for name, step in steps.items()})}")
    own = [member for member in members if member.interface.step is not None]
    zones = {member.name: member.interface.time_zone for member in own} or {"data": recipe.data.time_zone}
    if len({zone or "UTC" for zone in zones.values()}) > 1:
        clocks = _listed({name: zone or "UTC" for name, zone in zones.items()})
        raise EnsembleError(f"one clock for the calendar columns is wanted; members were trained with that of: {clocks}")
    symbol = recipe.data.symbol
    notes = [
        f"{member.name} was trained on {member.interface.symbol or 'all contracts of its file'}, these are {symbol or 'all of them'}"
        for member in own
        if member.interface.symbol != symbol
    ]
    ends = {member.name: member.interface.trained_until for member in members}
    if unsaid := [name for name, end in ends.items() if end is None]:
        notes.append(f"when training ended is not said by the file of {', '.join(unsaid)}")
    return Prepared(
        members,
        {member.name: planned_bytes(member, notes.append) for member in members},
        next(iter(steps.values())),
        next(iter(zones.values())),
        max((end for end in ends.values() if end is not None), default=None),
        unsaid,
        notes,
    )


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def run(
    recipe: EnsembleRecipe,
    *,
    resume: bool = False,
    console: Console | None = None,
    lines: Iterable[str] | None = None,
    answers: TextIO | None = None,
) -> dict[str, Any]:
    """Do everything that the recipe of an ensemble says.

    Args:
        recipe: what to do.
        resume: go on in the folder `out` where an earlier run of this recipe stopped.
        console: where to tell of it; by default standard output, or standard error where that carries the answers.
        lines: of the bars, where `data.path` is `-`; standard input by default.
        answers: where a line of JSON goes for each bar of such lines; standard output by default.

    Returns:
        What summary.json holds.

    Raises:
        TftqError: a member, the data, the budget or the folder is not as it must be.
    """
    streamed = recipe.data.streamed
    tell = Messages(console or (Console(sys.stderr) if streamed else Console()))
    prepared = prepare(recipe)
    budget = recipe.memory.budget_mb * MEGA
    residency = Residency(prepared.members, prepared.planned, budget, lazy=recipe.memory.residency == "lazy")
    data: BarsToAnswer = recipe.data.model_copy(update={"time_zone": recipe.data.time_zone or prepared.time_zone})
    saved = read(recipe.out) if resume and recipe.out is not None else None
    after = None if saved is None else saved.newest
    if streamed:
        incoming = bars_of_lines(sys.stdin if lines is None else lines, data, prepared.step, tell)
    else:
        incoming = bars_of_file(data, prepared.step, prepared.lookback, prepared.trained_until, after)
    before = resident_bytes()
    residency.load_all()  # before there is a folder: where one cannot be loaded, nothing is left behind
    loaded = resident_bytes() - before
    folder = RunFolder.open(recipe, environment(Device("cpu", recipe.threads), None), resume=resume)

    tell.console.print_line(f"{recipe.name} into {folder.path}", style="bold")
    tell.console.print_table(_plan(prepared, budget))
    for note in (*prepared.notes, *incoming.notes):
        tell(note)
    before = resident_bytes()
    weights = {name: part.weight for name, part in recipe.members.items()}
    council = Council(prepared.members, weights, recipe.rule.kind, recipe.rule.minimum, residency, recipe.at_once, tell)
    market = Market(prepared.step, prepared.time_zone, prepared.lookback)
    every = recipe.save_every or (SAVE_EVERY_OF_STREAM if streamed else SAVE_EVERY_OF_FILE)
    with folder.alone():  # its journal is cut to what the state counts
        session = Session(folder.path, market, council, incoming, saved=saved, tell=tell)
    with folder.recording(name=recipe.name):
        with closing(session):
            for at_bar in session.answers(every):
                if streamed:
                    print(json.dumps(as_document(at_bar)), file=answers or sys.stdout, flush=True)
            resident = loaded + resident_bytes() - before
            table = session.journal.finish()
        for reason, count in incoming.counts.items():
            tell(f"left out: {count} {reason}")
        found = _judged(table, recipe, prepared, tell)
        summary = _summary(recipe, prepared, council, residency, found, tell.kept)
        summary["memory"]["resident_bytes"] = resident
        summary["left_out_bars"], summary["resumed_after_bars"] = dict(incoming.counts), session.resumed_after
        folder.write_json("summary.json", summary)
        report = None if found is None else write_report(folder.path)
    _tell_summary(tell.console, summary)
    if report is not None:
        tell.console.print_line(f"report: {report}")
    return summary


def _judged(answers: Path, recipe: EnsembleRecipe, prepared: Prepared, tell: Messages) -> Backtest | None:
    """What the answers were worth; None, with the reason told, where they cannot be judged."""
    table = pq.read_table(answers)
    since = prepared.trained_until
    newest = pc.max(table["time"]).cast("int64").as_py()
    if since is not None and newest is not None and newest <= since:
        tell(f"no bar is later than {iso(since)}, when training ended: judged all the same, though members may have been trained on these")
        since = None
    try:
        return backtest(table, cost_ticks=recipe.cost_ticks, tick=recipe.tick, since=since, unsaid=prepared.unsaid)
    except TooFewBarsError as error:  # no fault of a run
        tell(f"not judged, and no report: {error}")
        return None


def _summary(
    recipe: EnsembleRecipe, prepared: Prepared, council: Council, residency: Residency, found: Backtest | None, notes: list[str]
) -> dict[str, Any]:
    """What summary.json holds, but for what only the run knows: how much the process grew, bars left out, and those before a restart."""
    members = {
        member.name: {
            "kind": member.kind,
            "path": str(member.files[0]),
            "weight": recipe.members[member.name].weight,
            "planned_bytes": prepared.planned[member.name],
            "measured_bytes": residency.loads.grown.get(member.name),
            "latency_ms": council.latency[member.name].summary(),
            "states": dict(council.states[member.name]),
        }
        for member in council.members
    }
    return {
        "name": recipe.name,
        "status": "ok",
        "rule": recipe.rule.kind,
        "bars": council.bars,
        "states": dict(council.states[OWN]),
        "notes": notes,
        "members": members,
        "memory": {
            "budget_bytes": recipe.memory.budget_mb * MEGA,
            "planned_bytes": sum(prepared.planned.values()),
            "residency": recipe.memory.residency,
            "shared_allocator": recipe.memory.shared,
            **residency.loads.summary(),
        },
        "latency_ms": council.latency[OWN].summary(),
        **({} if found is None else {"backtest": found.summary()}),
    }


def _plan(prepared: Prepared, budget: int) -> Table:
    """What the members are planned to take, as a table."""
    table = Table(title=f"planned: {sum(prepared.planned.values()) / MEGA:.1f} MB of {budget / MEGA:.0f}")
    for heading in ("member", "kind", "file"):
        table.add_column(heading)
    for heading in ("lookback", "MB"):
        table.add_column(heading, justify="right")
    for member in prepared.members:
        size = f"{prepared.planned[member.name] / MEGA:.1f}"
        table.add_row(member.name, member.kind, member.files[0].name, str(member.interface.lookback), size)
    return table


def _tell_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """What it came to, as a table and a line."""
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
