"""Run the members of an ensemble on every bar of a file or of standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow.parquet as pq

from tftq.console import Console, Messages
from tftq.data.files import iso
from tftq.ensemble.answer_log import as_document
from tftq.ensemble.backtest import Backtest, backtest
from tftq.ensemble.checkpoint import read
from tftq.ensemble.ensemble import Ensemble
from tftq.ensemble.feed import Feed, bars_of_file, bars_of_lines
from tftq.ensemble.loop import Loop
from tftq.ensemble.market import Market
from tftq.ensemble.prepare import Prepared, prepare
from tftq.ensemble.recipe import OWN, BarsToAnswer, EnsembleRecipe
from tftq.ensemble.residency import Residency
from tftq.ensemble.tables import planned_lines, print_summary
from tftq.errors import TooFewBarsError
from tftq.jobs.environment import Device, environment
from tftq.jobs.folder import RunFolder
from tftq.jobs.job import Job
from tftq.serve.resident import resident_bytes
from tftq.spec.summary import EnsembleSummary, MemberSummary
from tftq.spec.units import MIB

SAVE_EVERY_OF_FILE, SAVE_EVERY_OF_STREAM = 500, 1  # bars


@dataclass(frozen=True)
class _EnsembleJob(Job[EnsembleRecipe]):
    """The run of an ensemble.

    Args:
        prepared: its members.
        residency: loads them.
        feed: the bars.
        messages: printed, and kept for the summary.
    """

    prepared: Prepared
    residency: Residency
    feed: Feed
    messages: Messages


def run(
    recipe: EnsembleRecipe,
    *,
    resume: bool = False,
    console: Console | None = None,
    lines: Iterable[str] | None = None,
    answers: TextIO | None = None,
) -> EnsembleSummary:
    """Run a recipe of an ensemble.

    Args:
        recipe: of the run.
        resume: resume an earlier run of this recipe in its folder `out`.
        console: where to print; by default standard output, or standard error where that carries the answers.
        lines: of the bars, where `data.path` is `-`; standard input by default.
        answers: the stream for a line of JSON per bar of such lines; standard output by default.

    Returns:
        The content of summary.json.

    Raises:
        TftqError: a member, the data, the budget or the folder cannot be used.
    """
    streamed = recipe.data.streamed
    messages = Messages(console or Console(sys.stderr if streamed else sys.stdout))
    prepared = prepare(recipe)
    residency = Residency(prepared.members, prepared.planned, recipe.memory.budget_mb * MIB, lazy=recipe.memory.residency == "lazy")
    data: BarsToAnswer = recipe.data.model_copy(update={"time_zone": recipe.data.time_zone or prepared.time_zone})
    saved = read(recipe.out) if resume and recipe.out is not None else None
    if streamed:
        feed = bars_of_lines(sys.stdin if lines is None else lines, data, prepared.step, messages)
    else:
        after = None if saved is None else saved.newest
        feed = bars_of_file(data, prepared.step, prepared.lookback, prepared.trained_until, after)
    before = resident_bytes()
    residency.load_all()  # before there is a folder: where one cannot be loaded, nothing is left behind
    loaded = resident_bytes() - before
    folder = RunFolder.open(recipe, environment(Device("cpu", recipe.threads), None), resume=resume)
    job = _EnsembleJob(recipe, folder, messages.console, prepared, residency, feed, messages)
    job.announce()
    job.console.print_line(planned_lines(prepared, recipe.memory.budget_mb * MIB))
    for note in (*prepared.notes, *feed.notes):
        messages(note)

    before = resident_bytes() - loaded
    weights = {name: part.weight for name, part in recipe.members.items()}
    ensemble = Ensemble(prepared.members, weights, recipe.rule.kind, recipe.rule.minimum, residency, recipe.at_once, messages)
    with folder.alone():  # its answer log is cut to what the state counts
        market = Market(prepared.step, prepared.time_zone, prepared.lookback)
        loop = Loop(folder.path, market, ensemble, feed, saved=saved, messages=messages)
    output = (answers or sys.stdout) if streamed else None
    summary = job.record(lambda: _answer_bars(job, loop, ensemble, before, output), _write_report)
    print_summary(job.console, summary)
    return summary


def _answer_bars(job: _EnsembleJob, loop: Loop, ensemble: Ensemble, before: int, output: TextIO | None) -> EnsembleSummary:
    """Answer every bar, judge the answers, and summarize.

    Args:
        job: the run.
        loop: over the bars.
        ensemble: its members.
        before: resident bytes of the process without members and market.
        output: the stream for a line of JSON per bar; None for a file of bars.
    """
    streamed = output is not None
    with closing(loop):
        for answers in loop.answers(job.recipe.save_every or (SAVE_EVERY_OF_STREAM if streamed else SAVE_EVERY_OF_FILE)):
            if output is not None:
                print(json.dumps(as_document(answers)), file=output, flush=True)
        resident = resident_bytes() - before
        job.residency.unload_all()  # the rest of the work needs memory of its own
        table = loop.log.finish()
    for reason, count in job.feed.counts.items():
        job.messages(f"left out: {count} {reason}")
    return _summary(job, loop, ensemble, _judge(job, table), resident)


def _write_report(folder: Path, summary: EnsembleSummary) -> Path | None:
    """Write the report where the answers were judged."""
    from tftq.ensemble.report import write_report  # Jinja2, not needed before

    return None if summary.backtest is None else write_report(folder)


def _judge(job: _EnsembleJob, answers: Path) -> Backtest | None:
    """Back-test the answers; None, with the reason printed, where there are too few of them."""
    table = pq.read_table(answers)
    since, recipe = job.prepared.trained_until, job.recipe
    newest = int(table["time"].to_numpy().view(np.int64).max()) if len(table) else None
    if since is not None and newest is not None and newest <= since:
        trained = f"no bar is later than {iso(since)}, when training ended"
        job.messages(f"{trained}: judged all the same, though members may have been trained on these")
        since = None
    try:
        return backtest(table, cost_ticks=recipe.cost_ticks, tick=recipe.tick, since=since, unsaid=job.prepared.unknown)
    except TooFewBarsError as error:  # no fault of a run
        job.messages(f"not judged, and no report: {error}")
        return None


def _summary(job: _EnsembleJob, loop: Loop, ensemble: Ensemble, judged: Backtest | None, resident: int) -> EnsembleSummary:
    """Summarize a run; `resident` is the growth of its process in bytes."""
    recipe, prepared, residency = job.recipe, job.prepared, job.residency
    members = {
        member.name: MemberSummary(
            kind=member.kind,
            path=str(member.files[0]),
            weight=recipe.members[member.name].weight,
            planned_bytes=prepared.planned[member.name],
            measured_bytes=residency.loads.grown.get(member.name),
            latency_ms=ensemble.latency[member.name].summary(),
            states=dict(ensemble.states[member.name]),
        )
        for member in ensemble.members
    }
    return EnsembleSummary(
        name=recipe.name,
        rule=recipe.rule.kind,
        bars=ensemble.bars,
        states=dict(ensemble.states[OWN]),
        notes=job.messages.kept,
        members=members,
        memory={
            "budget_bytes": recipe.memory.budget_mb * MIB,
            "planned_bytes": sum(prepared.planned.values()),
            "residency": recipe.memory.residency,
            "shared_allocator": recipe.memory.shared,
            **residency.loads.summary(),
            "resident_bytes": resident,
        },
        latency_ms=ensemble.latency[OWN].summary(),
        backtest=None if judged is None else judged.summary(),
        left_out_bars=dict(job.feed.counts),
        resumed_after_bars=loop.resumed_after,
    )
