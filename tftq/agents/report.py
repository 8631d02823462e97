"""What the run of an agent came to: lines while it goes, a table at its end, and its page."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.agents.export import ExportedPolicy
from tftq.agents.rewards import Earnings
from tftq.memory.components import MIB
from tftq.report.facts import Facts
from tftq.report.html import Html, section, table, tag
from tftq.report.models import gate
from tftq.report.sections import data, environment, memory, recipe
from tftq.report.svg import line_chart
from tftq.report.verdict import MB

PROVES_NOTHING = (
    "What a policy earns on a few days of bars is chance for the most part, and the costs here know neither spread nor slippage."
)


def evaluation_line(epoch: int, steps: int, train_reward: float, earnings: Earnings) -> str:
    """How far a training is."""
    trained = f"{steps:,} steps, {1e4 * train_reward:+.3f} bp a bar in training"
    return f"evaluation {epoch}: {trained}; validation: {in_words(earnings)}"


def in_words(earnings: Earnings) -> str:
    """A course of positions in a few words."""
    shares = f"{earnings.short:.0%} short, {earnings.flat:.0%} flat, {earnings.long:.0%} long"
    return f"net return {percent(earnings.net_return)}, {earnings.turnover} units of position changed, {shares}"


def percent(log_return: float) -> str:
    """A log return."""
    return f"{100 * log_return:+.3f} %"


def policies_table(exported: Mapping[str, ExportedPolicy], baselines: Mapping[str, Earnings]) -> Table:
    """Size, cost and return of the exported policies beside the baselines; a column each."""
    found = Table(title="Measured in ONNX Runtime, on the validation windows", box=SIMPLE_HEAD)
    rows = _rows(
        {kind: model.summary() for kind, model in exported.items()}, {name: vars(earnings) for name, earnings in baselines.items()}
    )
    for name in ("", *exported, *baselines):
        found.add_column(name, justify="right" if name else "left")
    for row in rows:
        found.add_row(*row)
    return found


def agent_parts(facts: Facts) -> list[Html]:
    """The parts of its page in order."""
    found = facts.summary
    agent, bars = facts.recipe["agent"], facts.recipe["data"]
    what = (
        f"A policy that holds -1, 0 or 1 from bar to bar, of {bars['lookback']} bars, trained by {agent['kind'].upper()} in "
        f"{found['steps']:,} steps at {found['steps_per_s']:.0f} a second on {found['device']}, seed {found['seed']}, "
        f"begun {facts.environment['started']}."
    )
    return [
        tag("header", tag("h1", found["name"]), tag("p", what, class_="soft")),
        _verdict(facts),
        _models(facts),
        _curves(facts.stages["train"], found["val"]["baselines"]),
        memory(facts),
        data(facts),
        gate(facts),
        environment(facts.environment),
        recipe(facts.recipe_text),
    ]


def _verdict(facts: Facts) -> Html:
    found = facts.summary
    net = found["val"]["net_return"]
    baselines = found["val"]["baselines"]
    beaten = net > max(earnings["net_return"] for earnings in baselines.values())
    beside = ", ".join(f"{name} {percent(earnings['net_return'])}" for name, earnings in baselines.items())
    return tag(
        "div",
        tag("b", f"The policy {'earned more than' if beaten else 'did not beat'} buying and holding, and doing nothing"),
        tag("p", f"Net of costs {percent(net)} on {found['val']['bars']} validation bars, as a log return; {beside}."),
        tag("p", PROVES_NOTHING),
        class_=f"verdict {'good' if beaten else 'bad'}",
    )


def _models(facts: Facts) -> Html:
    found, baselines = facts.summary["models"], facts.summary["val"]["baselines"]
    note = (
        "Net return is the sum of position × next bar's log return, less cost_ticks × tick / close for each unit of position changed; "
        "every unbroken run of bars begins and ends flat. "
        "Agreement is with the policy as it was trained, at every validation bar and position held."
    )
    return section("Exported policies", table(["", *found, *baselines], _rows(found, baselines)), tag("p", note, class_="soft"))


def _rows(models: Mapping[str, Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    none = ["–" for _ in baselines]
    earned = [*(model["val"] for model in models.values()), *baselines.values()]
    return [
        ["file", *(f"{model['file_bytes'] / MB:.2f} MB" for model in models.values()), *none],
        ["resident memory", *(f"{model['rss_bytes'] / MB:.1f} MB" for model in models.values()), *none],
        ["latency, batch 1", *(f"{model['latency_ms']:.2f} ms" for model in models.values()), *none],
        ["INT8 share of weights", *(f"{model['int8_weight_share']:.1%}" for model in models.values()), *none],
        ["agreement with the trained policy", *(f"{model['agreement']:.2%}" for model in models.values()), *none],
        ["net return", *(percent(earnings["net_return"]) for earnings in earned)],
        ["paid in costs", *(f"{100 * earnings['cost']:.3f} %" for earnings in earned)],
        ["units of position changed", *(str(earnings["turnover"]) for earnings in earned)],
        ["short, flat, long", *(f"{earnings['short']:.0%}, {earnings['flat']:.0%}, {earnings['long']:.0%}" for earnings in earned)],
    ]


def _curves(evaluations: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> Html:
    """What the policy earned as it learned."""
    steps = [f"{found['steps']:,}" for found in evaluations]
    net = {
        "policy": [100 * found["val"]["net_return"] for found in evaluations],
        **{name: [100 * earnings["net_return"] for _ in evaluations] for name, earnings in baselines.items()},
    }
    reward = {"training": [1e4 * found["train_reward"] for found in evaluations]}
    return section(
        "Training",
        tag(
            "div",
            line_chart("Net return on the validation windows, %", net, steps, axis="step"),
            line_chart("Mean reward of a bar in training, random positions among them, basis points", reward, steps, axis="step"),
            class_="side",
        ),
        tag("p", "The policy of the last step was exported, not the best one of these.", class_="soft"),
    )


def planned_phase_line(title: str, peak_bytes: int, budget_mb: int) -> str:
    """What a phase is expected to need."""
    return f"planned peak of {title}: {peak_bytes / MIB:.1f} of {budget_mb} MiB"
