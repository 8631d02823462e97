"""report.html of an ensemble's run: what its answers were worth beside each member's, and what the members cost in memory and time."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tftq.ensemble.backtest import Backtest, Score, backtest, drawdowns
from tftq.ensemble.recipe import BUY_AND_HOLD, NO_CHANGE, OWN
from tftq.io import written_whole
from tftq.report.document import document
from tftq.report.html import Html, join, listing, section, table, tag
from tftq.report.sections import environment, recipe
from tftq.report.svg import bar_chart, line_chart
from tftq.report.verdict import MB
from tftq.spec.quantiles import quantile_name

POINTS = 300  # of the chart of equity: more are not seen
HEIGHT_IN_SIGHT = 3  # a budget so many times higher than what it is for is told, not drawn: the bars would be lost below it
LEDGER = (
    "A position is held from the close of the bar it was answered at to the next close, never over a gap between segments; returns are "
    "shares of a notional that stays the same, added up, gains not reinvested. A hit is a next close to the position's side; bars without "
    "a position or without a move are neither. Turnover counts every change of the position: from −1 to 1 is 2. Buying and holding is "
    "judged by the same ledger, at every bar at which any member answered."
)
RISK = (
    "q-risk = 2·Σ pinball / Σ|y| of cumulative log returns over the windows whose whole horizon lies in their segment, lower is better; "
    "the P50 risk of no change is 1. The loss is the mean pinball loss; coverage is that of the outer quantiles."
)


@dataclass(frozen=True)
class EnsembleFacts:
    """The files of an ensemble's run.

    Attributes:
        summary: summary.json.
        found: the backtest of answers.parquet.
        environment: env.json.
        recipe_text: recipe.yaml as it stands there.
    """

    summary: dict[str, Any]
    found: Backtest
    environment: dict[str, Any]
    recipe_text: str

    @classmethod
    def read(cls, folder: Path) -> "EnsembleFacts":
        """Read the folder of a run that came to its end."""
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        judged = summary["backtest"]
        answers = pq.read_table(folder / "answers.parquet")
        return cls(
            summary,
            backtest(
                answers,
                cost_ticks=judged["cost_ticks"],
                tick=judged["tick"],
                since=judged["since_ns"],
                unsaid=judged["training_end_unsaid"],
            ),
            json.loads((folder / "env.json").read_text(encoding="utf-8")),
            (folder / "recipe.yaml").read_text(encoding="utf-8"),
        )

    @property
    def names(self) -> list[str]:
        """Whose answers were judged: the ensemble first, then its members, then what they are compared with."""
        members = [name for name in self.found.scores if name not in (OWN, BUY_AND_HOLD, NO_CHANGE)]
        return [OWN, *members, BUY_AND_HOLD, NO_CHANGE]


def write_ensemble_report(folder: Path) -> Path:
    """Write `<folder>/report.html`, whole or not at all.

    Args:
        folder: of an ensemble's run that came to its end; everything on the page is read from its files.

    Returns:
        The page's path.
    """
    page = ensemble_page(EnsembleFacts.read(folder))
    with written_whole(folder / "report.html") as part:
        part.write_text(page, encoding="utf-8")
    return folder / "report.html"


def ensemble_page(facts: EnsembleFacts) -> str:
    """The whole document, which is well-formed XML too."""
    summary = facts.summary
    members = ", ".join(summary["members"])
    what = f"{members}, combined by {summary['rule']}, over {summary['bars']:,} bars; begun {facts.environment['started']}."
    parts = [
        tag("header", tag("h1", summary["name"]), tag("p", what, class_="soft")),
        _verdict(facts),
        _tiles(facts),
        _backtest(facts),
        _members(facts),
        section("Notes", listing(summary["notes"]) if summary["notes"] else tag("p", "None.")),
        environment(facts.environment),
        recipe(facts.recipe_text),
    ]
    return document(summary["name"], parts)


def _verdict(facts: EnsembleFacts) -> Html:
    """What came of it in a line, and why that proves nothing; so it is never green."""
    own, held = (facts.found.scores[name].net_return for name in (OWN, BUY_AND_HOLD))
    return tag(
        "div",
        tag("b", f"After costs the ensemble returned {own:+.3%}, buying and holding {held:+.3%}"),
        tag("p", facts.found.warning),
        class_="verdict bad",
    )


def _tiles(facts: EnsembleFacts) -> Html:
    """The figures to remember."""
    own, memory, latency = facts.found.scores[OWN], facts.summary["memory"], facts.summary["latency_ms"]
    entries = [
        (_share(own.hit_rate), f"hit rate over {own.hits + own.misses:,} bars"),
        (f"{own.max_drawdown:.3%}", "maximum drawdown"),
        (f"{own.turnover:,.0f}", f"turnover in {own.trades:,} trades"),
        (f"{memory['resident_bytes'] / MB:,.0f} MB", f"resident, budget {memory['budget_bytes'] / MB:,.0f} MB"),
        (f"{latency['median']:.2f} ms", f"a bar, p99 {latency['p99']:.2f} ms"),
    ]
    return tag("div", *(tag("div", tag("b", value), tag("span", words)) for value, words in entries), class_="tiles")


def _backtest(facts: EnsembleFacts) -> Html:
    """Scores side by side, and the course of the equity."""
    found = facts.found
    scores = {name: found.scores[name] for name in facts.names}

    def row(name: str, form: Callable[[Score], object]) -> list[object]:
        return [name, *map(form, scores.values())]

    rows = [
        row("answers", lambda score: f"{score.answers:,}"),
        row("hit rate", lambda score: join([_share(score.hit_rate), tag("small", f"{score.hits:,} of {score.hits + score.misses:,}")])),
        row("return before costs", lambda score: f"{score.gross_return:+.3%}"),
        row("costs", lambda score: f"{score.gross_return - score.net_return:.3%}"),
        row("return after costs", lambda score: f"{score.net_return:+.3%}"),
        row("maximum drawdown", lambda score: f"{score.max_drawdown:.3%}"),
        row("turnover", lambda score: f"{score.turnover:,.1f}"),
        row("trades", lambda score: f"{score.trades:,}"),
        *_risks(scores),
    ]
    bars = "" if not found.learned else f" {found.learned:,} bars up to the end of training do not count."
    note = f"A change of position by 1 costs {found.cost_ticks * found.tick:g} in the price's unit. {LEDGER} {RISK}{bars}"
    return section("Backtest", _courses(facts), table(["", *scores], rows), tag("p", note, class_="soft"))


def _risks(scores: dict[str, Score]) -> list[list[object]]:
    """Rows of the forecasts, where any were judged."""
    judged = {name: score.forecast for name, score in scores.items() if score.forecast is not None}
    levels = sorted({float(level) for name, forecast in judged.items() if name != NO_CHANGE for level in forecast["q_risk"]})

    def row(name: str, value: Callable[[dict[str, Any]], str | None]) -> list[object]:
        return [name, *((value(judged[member]) or "–") if member in judged else "–" for member in scores)]

    def risk(level: float) -> Callable[[dict[str, Any]], str | None]:
        return lambda forecast: f"{forecast['q_risk'][str(level)]:.4f}" if str(level) in forecast["q_risk"] else None

    if not levels:
        return []
    return [
        row("forecast windows", lambda forecast: f"{forecast['windows']:,}"),
        *(row(f"{quantile_name(level)} q-risk", risk(level)) for level in levels),
        row("quantile loss, bp", lambda forecast: f"{1e4 * forecast['loss']:.3f}" if "coverage" in forecast else None),
        row("coverage", lambda forecast: f"{forecast['coverage']:.1%}" if "coverage" in forecast else None),
    ]


def _courses(facts: EnsembleFacts) -> Html:
    """Equity and drawdown over the bars, of all but the forecast that holds nothing."""
    count = len(facts.found.bars)
    shown = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
    equity = {name: facts.found.equity[name] for name in facts.names if name != NO_CHANGE}
    labels = [str(bar + 1) for bar in shown]

    def chart(title: str, courses: dict[str, np.ndarray]) -> Html:
        series = {name: (100 * course[shown]).tolist() for name, course in courses.items()}
        return line_chart(f"{title}, %", series, labels, axis="bar")

    falls = {name: -drawdowns(course) for name, course in equity.items()}
    return tag("div", chart("Equity: the sum of returns after costs", equity), chart("Below the most it had been", falls), class_="side")


def _members(facts: EnsembleFacts) -> Html:
    """What each member is, costs and answered, and memory beside the budget."""
    members, memory = facts.summary["members"], facts.summary["memory"]
    states = list(dict.fromkeys(state for member in members.values() for state in member["states"]))

    def row(name: str, form: Callable[[dict[str, Any]], object]) -> list[object]:
        return [name, *map(form, members.values())]

    rows = [
        row("kind", lambda member: member["kind"]),
        row("file", lambda member: Path(member["path"]).name),
        row("weight", lambda member: f"{member['weight']:g}"),
        row("memory, planned", lambda member: f"{member['planned_bytes'] / MB:.1f} MB"),
        row("memory, measured at loading", lambda member: _megabytes(member["measured_bytes"])),
        row("time a bar, median", lambda member: f"{member['latency_ms']['median']:.2f} ms"),
        row("time a bar, p99", lambda member: f"{member['latency_ms']['p99']:.2f} ms"),
        *(row(f"bars: {state}", lambda member, state=state: f"{member['states'].get(state, 0):,}") for state in states),  # type: ignore[misc]
    ]
    allocator = "one allocator for all sessions" if memory["shared_allocator"] else "an allocator for each session"
    own = ", ".join(f"{state} {count:,}" for state, count in facts.summary["states"].items())
    turns = (
        f" Members were loaded {sum(memory['loads'].values()):,} times in all, which took {memory['load_seconds']:.1f} s, and unloaded "
        f"{memory['evictions']:,} times to make room."
        if memory["residency"] == "lazy"
        else ""
    )
    resumed = facts.summary["resumed_after_bars"]
    restart = f" The run went on after {resumed:,} bars: times, loads and memory are of those that follow." if resumed else ""
    line = (
        f"Planned {memory['planned_bytes'] / MB:,.1f} MB in all; the process grew by {memory['resident_bytes'] / MB:,.1f} MB; "
        f"budget {memory['budget_bytes'] / MB:,.0f} MB, residency {memory['residency']}, {allocator}.{turns} Bars of the "
        f"ensemble: {own}.{restart}"
    )
    return section("Members", tag("p", line), tag("div", _budget(facts), _time(facts), class_="side"), table(["", *members], rows))


def _budget(facts: EnsembleFacts) -> Html:
    """What the members were planned to take, one on another, beside what the process grew by, below the budget."""
    members, memory = facts.summary["members"], facts.summary["memory"]
    groups = {name: [member["planned_bytes"] / MB, None] for name, member in members.items()}
    groups["all, measured"] = [None, memory["resident_bytes"] / MB]
    budget = memory["budget_bytes"] / MB
    highest = max(memory["planned_bytes"], memory["resident_bytes"]) / MB
    marks = {f"budget {budget:,.0f}": budget} if budget <= HEIGHT_IN_SIGHT * highest else {}
    return bar_chart("Resident memory, MB", groups, {0: "planned", 1: "measured"}, axis="of all members", marks=marks)


def _time(facts: EnsembleFacts) -> Html:
    """The time that members take of a bar, one on another, beside that of the whole bar: features are made once for all of them."""
    groups = {name: [member["latency_ms"]["median"], None] for name, member in facts.summary["members"].items()}
    groups["the bar, features included"] = [None, facts.summary["latency_ms"]["median"]]
    return bar_chart("Median time of a bar, ms", groups, {0: "answers", 1: "the bar"}, axis="of all members", marks={})


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / MB:.1f} MB"
