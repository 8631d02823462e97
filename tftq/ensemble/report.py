"""Write report.html of an ensemble's run: the value of its answers beside its members', and the members' cost."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from markupsafe import Markup

from tftq.ensemble.backtest import Backtest, Score, backtest, drawdowns
from tftq.ensemble.recipe import BUY_AND_HOLD, NO_CHANGE, OWN
from tftq.report.chart import bar_chart, line_chart
from tftq.report.page import write_page
from tftq.spec.units import MIB

POINTS = 300  # of the chart of equity: more are not visible
BUDGET_IN_SIGHT = 3  # a budget more than this many times the highest bar is not drawn: the bars would be lost below it


def write_report(folder: Path) -> Path:
    """Write `<folder>/report.html` of an ensemble's run atomically.

    Args:
        folder: of a finished run; everything on the page comes from its files.

    Returns:
        The path of the page.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    result = _backtest(folder, summary["backtest"])
    members = [name for name in result.scores if name not in (OWN, BUY_AND_HOLD, NO_CHANGE)]
    scores = {name: result.scores[name] for name in (OWN, *members, BUY_AND_HOLD, NO_CHANGE)}
    levels = _levels(scores)
    values = {
        "summary": summary,
        "environment": json.loads((folder / "env.json").read_text(encoding="utf-8")),
        "recipe_text": (folder / "recipe.yaml").read_text(encoding="utf-8"),
        "backtest": result,
        "scores": scores,
        "own": scores[OWN],
        "held": scores[BUY_AND_HOLD],
        "levels": levels,
        "forecasts": [_forecast(score, levels) for score in scores.values()],
        "courses": _courses(result, [name for name in scores if name != NO_CHANGE]),
        "costs": [_memory_chart(summary), _time_chart(summary)],
        "states": list(dict.fromkeys(state for member in summary["members"].values() for state in member["states"])),
    }
    return write_page(folder, "ensemble.html", values)


def _backtest(folder: Path, judged: Mapping[str, Any]) -> Backtest:
    """Repeat the backtest of a run, for its equity."""
    answers = pq.read_table(folder / "answers.parquet")
    cost_ticks, tick = judged["cost_ticks"], judged["tick"]
    return backtest(answers, cost_ticks=cost_ticks, tick=tick, since=judged["since_ns"], unsaid=judged["training_end_unsaid"])


def _levels(scores: Mapping[str, Score]) -> list[str]:
    """List the quantile levels of all forecasts, in order; none if only agents were judged."""
    forecasts = [score.forecast for name, score in scores.items() if score.forecast is not None and name != NO_CHANGE]
    return sorted({level for forecast in forecasts for level in forecast["q_risk"]}, key=float)


def _forecast(score: Score, levels: Sequence[str]) -> dict[str, Any]:
    """Collect the figures of a member's forecasts; None for missing ones. The forecast of no change has only a risk."""
    forecast = score.forecast or {"windows": None, "q_risk": {}}
    whole = "coverage" in forecast
    return {
        "windows": forecast["windows"],
        "q_risk": {level: forecast["q_risk"].get(level) for level in levels},
        "loss_bp": 1e4 * forecast["loss"] if whole else None,
        "coverage": forecast["coverage"] if whole else None,
    }


def _courses(result: Backtest, names: Sequence[str]) -> list[Markup]:
    """Draw equity and drawdown over the bars."""
    count = len(result.bars)
    shown = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
    labels = [str(bar + 1) for bar in shown]
    equity = {name: (100 * result.equity[name][shown]).tolist() for name in names}
    falls = {name: (-100 * drawdowns(result.equity[name])[shown]).tolist() for name in names}
    return [
        line_chart("Equity: the sum of returns after costs, %", equity, labels, axis="bar"),
        line_chart("Drawdown, %", falls, labels, axis="bar"),
    ]


def _memory_chart(summary: Mapping[str, Any]) -> Markup:
    """Draw the members' planned memory, stacked, beside the growth of the process, below the budget."""
    memory = summary["memory"]
    groups = {name: [member["planned_bytes"] / MIB, None] for name, member in summary["members"].items()}
    groups["all, measured"] = [None, memory["resident_bytes"] / MIB]
    budget = memory["budget_bytes"] / MIB
    highest = max(memory["planned_bytes"], memory["resident_bytes"]) / MIB
    marks = {f"budget {budget:,.0f}": budget} if budget <= BUDGET_IN_SIGHT * highest else {}
    return bar_chart("Resident memory, MiB", groups, {0: "planned", 1: "measured"}, axis="of all members", marks=marks)


def _time_chart(summary: Mapping[str, Any]) -> Markup:
    """Draw the members' time per bar, stacked, beside that of the whole bar: features are computed once for all members."""
    groups = {name: [member["latency_ms"]["median"], None] for name, member in summary["members"].items()}
    groups["the bar, features included"] = [None, summary["latency_ms"]["median"]]
    return bar_chart("Median time per bar, ms", groups, {0: "answers", 1: "the bar"}, axis="of all members", marks={})
