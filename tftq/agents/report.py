"""Report the run of an agent: lines and a table for the console, and report.html."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.agents.export import ExportedPolicy
from tftq.agents.rewards import Earnings
from tftq.report.chart import line_chart
from tftq.report.forecaster import common_values
from tftq.report.page import megabytes, write_page
from tftq.report.run_files import RunFiles
from tftq.spec.units import MIB


def evaluation_line(epoch: int, steps: int, train_reward: float, earnings: Earnings) -> str:
    """Describe an evaluation during training."""
    trained = f"{steps:,} steps, {1e4 * train_reward:+.3f} bp per bar in training"
    return f"evaluation {epoch}: {trained}; validation: {in_words(earnings)}"


def in_words(earnings: Earnings) -> str:
    """Describe the earnings of a sequence of positions."""
    shares = f"{earnings.short:.0%} short, {earnings.flat:.0%} flat, {earnings.long:.0%} long"
    return f"net return {percent(earnings.net_return)}, {earnings.turnover} units of position changed, {shares}"


def percent(log_return: float) -> str:
    """Format a log return."""
    return f"{100 * log_return:+.3f} %"


def policies_table(exported: Mapping[str, ExportedPolicy], baselines: Mapping[str, Earnings]) -> Table:
    """Make a table of size, cost and return of the exported policies and the baselines, a column each."""
    table = Table(title="Measured in ONNX Runtime, on the validation windows", box=SIMPLE_HEAD)
    models = {format: policy.summary() for format, policy in exported.items()}
    for name in ("", *exported, *baselines):
        table.add_column(name, justify="right" if name else "left")
    for row in _rows(models, {name: vars(earnings) for name, earnings in baselines.items()}):
        table.add_row(*row)
    return table


def planned_phase_line(title: str, peak_bytes: int, budget_mb: int) -> str:
    """Describe the planned peak of a phase."""
    return f"planned peak of {title}: {peak_bytes / MIB:.1f} of {budget_mb} MiB"


def write_report(folder: Path) -> Path:
    """Write `<folder>/report.html` of an agent's run atomically.

    Args:
        folder: of a finished run; everything on the page comes from its files.

    Returns:
        The path of the page.
    """
    files = RunFiles.read(folder)
    validation, models = files.summary["val"], files.summary["models"]
    baselines = validation["baselines"]
    values = {
        "net_return": percent(validation["net_return"]),
        "beaten": validation["net_return"] > max(earnings["net_return"] for earnings in baselines.values()),
        "baselines": {name: percent(earnings["net_return"]) for name, earnings in baselines.items()},
        "policies": _rows(models, baselines),
        "charts": _charts(files.stages["train"], baselines),
    }
    return write_page(folder, "agent.html", common_values(files) | values)


def _rows(models: Mapping[str, Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Make the rows of the table of policies, each with its name first; a baseline has no file."""
    none = ["–" for _ in baselines]
    earned = [*(model["val"] for model in models.values()), *baselines.values()]
    return [
        ["file", *(megabytes(model["file_bytes"], ".2f") for model in models.values()), *none],
        ["resident memory", *(megabytes(model["rss_bytes"]) for model in models.values()), *none],
        ["latency, batch 1", *(f"{model['latency_ms']:.2f} ms" for model in models.values()), *none],
        ["INT8 share of weights", *(f"{model['int8_weight_share']:.1%}" for model in models.values()), *none],
        ["agreement with the trained policy", *(f"{model['agreement']:.2%}" for model in models.values()), *none],
        ["net return", *(percent(earnings["net_return"]) for earnings in earned)],
        ["paid in costs", *(f"{100 * earnings['cost']:.3f} %" for earnings in earned)],
        ["units of position changed", *(str(earnings["turnover"]) for earnings in earned)],
        ["short, flat, long", *(f"{earnings['short']:.0%}, {earnings['flat']:.0%}, {earnings['long']:.0%}" for earnings in earned)],
    ]


def _charts(evaluations: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> list[Markup]:
    """Draw the policy's earnings at each evaluation."""
    steps = [f"{evaluation['steps']:,}" for evaluation in evaluations]
    net = {
        "policy": [100 * evaluation["val"]["net_return"] for evaluation in evaluations],
        **{name: [100 * earnings["net_return"] for _ in evaluations] for name, earnings in baselines.items()},
    }
    reward = {"training": [1e4 * evaluation["train_reward"] for evaluation in evaluations]}
    return [
        line_chart("Net return on the validation windows, %", net, steps, axis="step"),
        line_chart("Mean reward per bar in training, random positions included, basis points", reward, steps, axis="step"),
    ]
