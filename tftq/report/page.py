"""report.html: one page without scripts or network that tells what a run was worth and what it cost."""

from pathlib import Path

from tftq.agents.report import agent_parts
from tftq.jobs.folder import RunFolder
from tftq.report.document import document
from tftq.report.facts import Facts
from tftq.report.html import tag
from tftq.report.models import gate, models
from tftq.report.sections import curves, data, environment, memory, pruning, recipe
from tftq.report.sensitivity import sensitivity
from tftq.report.verdict import tiles, verdict


def write_report(folder: Path) -> Path:
    """Write `<folder>/report.html`, whole or not at all.

    Args:
        folder: of a run that came to its end; everything on the page is read from its files.

    Returns:
        The page's path.
    """
    return RunFolder(folder).write("report.html", page(Facts.read(folder)))


def page(facts: Facts) -> str:
    """The whole document, which is well-formed XML too."""
    name = facts.summary["name"]
    if "agent" in facts.recipe:
        return document(name, agent_parts(facts))
    parts = [
        tag("header", tag("h1", name), tag("p", _what(facts), class_="soft")),
        verdict(facts),
        tiles(facts),
        models(facts),
        *([sensitivity(facts)] if "quant" in facts.summary else []),
        curves(facts),
        *([pruning(facts)] if "prune" in facts.summary else []),
        memory(facts),
        data(facts),
        gate(facts),
        environment(facts.environment),
        recipe(facts.recipe_text),
    ]
    return document(name, parts)


def _what(facts: Facts) -> str:
    """What was run, in a line."""
    found, began = facts.summary, facts.environment["started"]
    return (
        f"Forecasts of the {found['target']}, {facts.recipe['data']['horizon']} steps from {facts.recipe['data']['lookback']}. "
        f"{found['updates']:,} updates at {found['samples_per_s']:.0f} windows/s on {found['device']}, seed {found['seed']}, begun {began}."
    )
