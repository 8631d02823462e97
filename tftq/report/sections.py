"""How the run went: training, memory, data; and at the end what it ran on and with."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from tftq.memory.components import MIB
from tftq.memory.ledger import COMPONENTS, Ledger, Record, Row, Stack, ledgers, stack_of
from tftq.report.facts import Facts
from tftq.report.html import Html, join, listing, section, table, tag
from tftq.report.svg import bar_chart, line_chart

LATER = {"prune": ("p", "pruned"), "qat": ("q", "QAT")}  # stage -> what stands before its epochs' numbers, and what its shade is called
ABOUT = {
    "prune": "p1, p2, …: epochs of the pruned model.",
    "qat": "q1, q2, …: epochs of quantization-aware training (QAT).",
}
BUDGETS = (
    "Forward is activations and workspace, backward is gradients. Each kind stands as it was at the record where it was most, so they need "
    "not add up to the peak. The budgets of single kinds are what this project set out with, and no run fails for them; a run keeps within "
    "memory.budget_mb."
)
HEAVIEST = 10  # variables shown without being asked for
BUDGET_IN_SIGHT = 2  # a budget so many times higher than the highest bar is not drawn: the bars would be lost below it


def curves(facts: Facts) -> Html:
    """Loss and learning rate, one stage after the other."""
    epochs = [(stage, epoch) for stage, lines in facts.stages.items() for epoch in lines]
    labels = [_epoch_label(stage, epoch["epoch"]) for stage, epoch in epochs]
    shades = _shades([stage for stage, _ in epochs])

    def course(value: Callable[[dict[str, Any]], float | None]) -> list[float | None]:
        return [value(epoch) for _, epoch in epochs]

    losses = {
        "train": course(lambda epoch: epoch["train_loss"]),
        "validation": course(lambda epoch: None if epoch["val"] is None else epoch["val"]["loss"]),
    }
    names = {name: None for _, epoch in epochs for name in epoch["lr"]}
    rates = _merged({name: course(lambda epoch, name=name: epoch["lr"].get(name)) for name in names})  # type: ignore[misc]
    rows = [[label, *(_number(values[column]) for values in (*losses.values(), *rates.values()))] for column, label in enumerate(labels)]
    best = f"The weights of epoch {facts.summary['best_epoch']} were kept."
    later = "".join(f" {ABOUT[stage]}" for stage in facts.stages if stage in ABOUT)
    skipped = facts.summary["skipped_updates"]
    overflowed = f" {skipped} FP16 updates overflowed and were skipped." if skipped else ""
    return section(
        "Training",
        tag(
            "div",
            line_chart("Quantile loss", losses, labels, axis="epoch", shades=shades),
            line_chart("Learning rate at each epoch's last update", rates, labels, axis="epoch", shades=shades),
            class_="side",
        ),
        tag("p", f"{best}{overflowed}{later} The training loss is a mean over the epoch, with dropout.", class_="soft"),
        tag(
            "details",
            tag("summary", "Every epoch in figures"),
            table(["epoch", "train loss", "validation loss", *(f"lr of {name}" for name in rates)], rows),
        ),
    )


def memory(facts: Facts) -> Html:
    """The peak beside the plan, what it was made of, each kind beside its budget, and the course over the records."""
    found = facts.summary["memory"]
    source = {"cuda": "PyTorch's allocator", "counter": "the byte counter", "rss": "the process as a whole"}[found["source"]]
    peak, planned, budget = found["peak_bytes"], found["planned_peak_bytes"], facts.recipe["memory"]["budget_mb"]
    measured = "not measured" if peak is None else f"{peak / MIB:,.1f} MiB"
    line = (
        f"Peak {measured} by {source}, planned {planned / MIB:,.1f} MiB, budget {budget:,} MiB. "
        f"{found['checkpoints_recorded']} of {found['checkpoints_expected']} records."
    )
    missing = [tag("div", tag("p", "Missing records:"), listing(found["missing"]), class_="bad")] if found["missing"] else []
    books = ledgers(facts.records, budget)
    parts = [part for stage, ledger in books.items() for part in (tag("h3", f"What the peak of {stage} was made of"), _rows(ledger))]
    course = tag("div", _course(facts, planned, budget), tag("div", *parts), class_="side")
    details = tag("details", tag("summary", "Every phase's highest peak in figures, MiB"), _phases(books))
    return section("Memory", tag("p", line), *missing, course, tag("p", BUDGETS, class_="soft"), details)


def pruning(facts: Facts) -> Html:
    """What pruning cost, and every variable that stayed or went, of a run that pruned."""
    found = facts.summary["prune"]
    kept, dropped = found["kept"], found["dropped"]
    losses = [
        [f"before, {len(kept) + len(dropped)} history variables", f"{facts.summary['val']['loss']:.5f}"],
        [f"right after, {len(kept)} of them kept", f"{found['start_loss']:.5f}"],
        ["trained on" if found["best_epoch"] else "trained on: no epoch was better", f"{found['val']['loss']:.5f}"],
    ]
    share = f"The kept ones had {sum(kept.values()):.1%} of the selection weight. What the others said was replaced by its mean."

    def named(weights: dict[str, float]) -> str:
        return ", ".join(f"{name} {weight:.2%}" for name, weight in weights.items())

    return section(
        "Pruned variables",
        tag(
            "div",
            tag("div", table(["", "quantile loss, validation windows"], losses), tag("p", share, class_="soft")),
            table(["heaviest", "mean selection weight"], [[name, f"{weight:.2%}"] for name, weight in islice(kept.items(), HEAVIEST)]),
            class_="side",
        ),
        tag("details", tag("summary", f"The {len(kept)} that were kept"), tag("p", named(kept))),
        tag("details", tag("summary", f"The {len(dropped)} that were left out"), tag("p", named(dropped))),
    )


def data(facts: Facts) -> Html:
    """The ranges of the parts, and what was dropped."""
    return section("Data", tag("p", facts.recipe["data"]["path"], class_="soft"), listing(facts.summary["notes"]))


def environment(found: Mapping[str, Any]) -> Html:
    """What the figures depend on beside the recipe: env.json."""
    rows = [[name, _plain(value)] for name, value in found.items() if name != "packages"]
    packages = [[name, version] for name, version in found["packages"].items()]
    tables = [table(["", ""], part, class_="words") for part in (rows, packages)]
    return section("Environment", tag("div", *tables, class_="side"))


def recipe(text: str) -> Html:
    """The resolved recipe, as it stands in recipe.yaml."""
    return section("Recipe", tag("pre", text))


def _rows(ledger: Ledger) -> Html:
    """Each kind of memory beside what it may take."""
    rows = [[row.name, _mib(row.measured_bytes), _mib(row.budget_bytes), _verdict(row)] for row in ledger.rows]
    return table(["", "MiB", "budget", ""], rows)


def _verdict(row: Row) -> Html:
    return tag("span", row.verdict, class_="good" if row.verdict == "within" else "bad")


def _course(facts: Facts, planned: int, budget_mb: int) -> Html:
    """A bar for each record, of what its peak was made of."""
    stacks = [_stack(record) for record in facts.records]
    groups = {name: [None if (size := stack[name]) is None else size / MIB for stack in stacks] for name in stacks[0]}
    shown = {name.replace("_", " "): values for name, values in groups.items() if any(values)} or groups
    highest = max((sum(filter(None, stack.values())) for stack in stacks), default=0)
    marks = {f"planned {planned / MIB:,.0f}": planned / MIB}
    if budget_mb * MIB <= BUDGET_IN_SIGHT * max(highest, planned):
        marks[f"budget {budget_mb:,}"] = budget_mb
    labels = {
        column: _epoch_label(record["stage"], record["epoch"])
        for column, record in enumerate(facts.records)
        if record["phase"] == "EPOCH_START"
    }
    shades = _shades([record["stage"] for record in facts.records])
    return bar_chart("What each record's peak was made of, MiB", shown, labels, axis="epoch", marks=marks, shades=shades)


def _stack(record: Record) -> dict[str, int | None]:
    """The components of a record's peak, or the peak itself where nothing tells them apart."""
    stack = stack_of(record)
    whole = record["rss" if record["source"] == "rss" else "peak"]
    return {**stack, "not told apart": whole if not any(stack.values()) else None}


def _phases(books: Mapping[str, Ledger]) -> Html:
    """What each phase's highest peak was made of; a peak is of what led up to the phase's record."""
    rows = [
        [f"{stage} {phase}", *(_mib(stack[name]) for name in COMPONENTS), _mib(_total(stack))]
        for stage, ledger in books.items()
        for phase, stack in ledger.phases.items()
    ]
    return table(["", *(name.replace("_", " ") for name in COMPONENTS), "peak"], rows)


def _total(stack: Stack) -> int | None:
    return sum(filter(None, stack.values())) if any(size is not None for size in stack.values()) else None


def _mib(size: int | None) -> str:
    return "–" if size is None else f"{size / MIB:,.1f}"


def _epoch_label(stage: str, epoch: int) -> str:
    return f"{LATER[stage][0] if stage in LATER else ''}{epoch}"


def _shades(stages: Sequence[str]) -> dict[int, str]:
    """The first column of each stage after training -> what its shade is called."""
    return {stages.index(stage): name for stage, (_, name) in LATER.items() if stage in stages}


def _merged(series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Series that never differ as one, so that no line hides another."""
    names: dict[tuple[float | None, ...], list[str]] = {}
    for name, values in series.items():
        names.setdefault(tuple(values), []).append(name)
    return {", ".join(together): list(values) for values, together in names.items()}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _plain(value: object) -> object:
    """A value of env.json in words."""
    if isinstance(value, dict):
        return join([f"{name} {_plain(inner)}" for name, inner in value.items()], ", ")
    return {None: "none", True: "yes", False: "no"}.get(value, value) if value is None or isinstance(value, bool) else value
