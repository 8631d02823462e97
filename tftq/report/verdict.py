"""The first screen: what the run came to in a sentence, beside the naive forecast, and the few figures that matter."""

from tftq.memory.components import MIB
from tftq.report.facts import Facts
from tftq.report.html import Html, tag

MB = 1e6
LEVEL = 0.01  # a P50 risk this close to the naive one, in proportion, is no difference to boast of
COVERAGE_SLACK = 0.05  # between the share of outcomes an interval should hold and the share it held


def verdict(facts: Facts) -> Html:
    """Whether everything passed, and whether the forecasts are worth anything."""
    found = facts.summary
    records = found["memory"]["checkpoints_recorded"], found["memory"]["checkpoints_expected"]
    complete = records[0] == records[1]
    count = len(found["models"])
    passed = f"{count} exported model{'s' if count != 1 else ''} passed the gate" if count else "no model was exported"
    name, risk, _ = outcome(facts)
    beaten = risk < (1 - LEVEL) * naive_risk(facts)
    return tag(
        "div",
        tag("b", headline(facts)),
        tag("p", f"{name}: {in_words(facts)}"),
        tag("p", f"Status {found['status']}: {passed}; {records[0]} of {records[1]} memory records{'' if complete else ', see Memory'}."),
        class_=f"verdict {'good' if beaten and complete else 'bad'}",
    )


def headline(facts: Facts) -> str:
    """Whether what the run made beats the naive forecast, in words."""
    risk, naive = outcome(facts)[1], naive_risk(facts)
    if risk > (1 + LEVEL) * naive:
        return "The model does not beat the naive forecast"
    return "The model beats the naive forecast" if risk < (1 - LEVEL) * naive else "The model is level with the naive forecast"


def in_words(facts: Facts) -> str:
    """The risk beside the naive one, and how honest the interval is."""
    _, risk, coverage = outcome(facts)
    naive, data = naive_risk(facts), facts.recipe["data"]
    baseline = "no change" if data["kind"] == "bars" else f"the value {data['season']} rows earlier"
    levels = sorted(map(float, facts.summary["val"]["q_risk"]))
    due = levels[-1] - levels[0]
    fit = "too wide" if coverage > due + COVERAGE_SLACK else "too narrow" if coverage < due - COVERAGE_SLACK else "about right"
    interval = f" Its {due:.0%} interval holds {coverage:.0%} of the outcomes: {fit}." if due else ""
    against = f" ({abs(risk / naive - 1):.1%} {'above' if risk > naive else 'below'})" if naive else ""
    risks = f"its P50 q-risk is {risk:.4f}, against {naive:.4f} of the naive forecast, {baseline}{against}"
    return f"on the validation windows {risks}.{interval}"


def tiles(facts: Facts) -> Html:
    """The figures to remember."""
    found = facts.summary
    name, risk, _ = outcome(facts)
    peak = found["memory"]["peak_bytes"]
    entries = [(f"{risk:.4f}", f"P50 q-risk, naive {naive_risk(facts):.4f}")]
    if found["models"]:
        made = found["models"][name]
        entries += [
            (f"{made['file_bytes'] / MB:.2f} MB", f"{name} file"),
            (f"{made['rss_bytes'] / MB:.0f} MB", "resident when loaded"),
            (f"{made['latency_ms']:.2f} ms", "a forecast, batch 1"),
        ]
    budget = f"training peak, budget {facts.recipe['memory']['budget_mb']:,} MiB"
    entries.append(("not measured" if peak is None else f"{peak / MIB:,.0f} MiB", budget))
    return tag("div", *(tag("div", tag("b", value), tag("span", words)) for value, words in entries), class_="tiles")


def outcome(facts: Facts) -> tuple[str, float, float]:
    """Name, P50 risk and coverage of what the recipe is for: the last exported model, or the trained one where none was exported.

    The streaming pair and `fp16_int8` are the same model once more.
    """
    entries = {"the trained model": facts.summary["val"], **facts.summary["models"]}
    name, entry = [(name, entry) for name, entry in entries.items() if name not in ("stream", "fp16_int8")][-1]
    return name, entry["q_risk"]["0.5"], entry["coverage"]


def naive_risk(facts: Facts) -> float:
    """The P50 risk of the naive forecast."""
    risk: float = facts.summary["val"]["baseline_q_risk"]["0.5"]
    return risk
