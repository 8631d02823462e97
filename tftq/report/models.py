"""Compute a page's section on the exported models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tftq.report.chart import line_chart
from tftq.report.page import quantile
from tftq.report.run_files import RunFiles


@dataclass(frozen=True)
class ModelColumn:
    """An exported model in the table of models.

    Attributes:
        name: the format.
        figures: the model's entry in summary.json.
        integer_products: products with weights that run in integers, such as "20 of 20"; layers kept in floating point do not count.
        gpu: its cost on a GPU; None if that was not measured.
    """

    name: str
    figures: Mapping[str, Any]
    integer_products: str
    gpu: Mapping[str, Any] | None

    @property
    def nodes(self) -> str:
        """Describe which provider computes how many nodes of the graph."""
        return describe_nodes(self.figures["nodes"])

    @property
    def gpu_nodes(self) -> str:
        """Describe the same for the session on the GPU."""
        return describe_nodes(self.figures["gpu"]["nodes"])


def model_columns(files: RunFiles) -> list[ModelColumn]:
    """Make a column per exported model."""
    return [
        ModelColumn(name, figures, _integer_products(files.proofs.get(name)), figures.get("gpu", {}).get("cost"))
        for name, figures in files.summary["models"].items()
    ]


def risk_charts(columns: Sequence[ModelColumn]) -> list[Markup]:
    """Draw the q-risk of each quantile over the horizon, with a line per model."""
    levels = columns[0].figures["q_risk_by_step"]
    steps = [str(step) for step in range(1, 1 + len(next(iter(levels.values()))))]
    return [
        line_chart(
            f"{quantile(level)} q-risk at each step",
            {column.name: column.figures["q_risk_by_step"][level] for column in columns},
            steps,
            axis="step of the horizon",
        )
        for level in levels
    ]


def describe_nodes(nodes: Mapping[str, Mapping[str, int]]) -> str:
    """Describe which execution provider computes how many nodes of a graph.

    Args:
        nodes: provider -> operator -> nodes.

    Returns:
        As "all 212 on CPU", or "CUDA 180; CPU 12: Concat × 7, Gather × 5": the provider with the most first, the operators of the others.
    """
    counts = sorted(((sum(operators.values()), provider) for provider, operators in nodes.items()), reverse=True)
    short = {provider: provider.removesuffix("ExecutionProvider") for provider in nodes}
    (count, provider), *others = counts
    if not others:
        return f"all {count} on {short[provider]}"
    rest = [f"{short[other]} {few}: {_operators(nodes[other])}" for few, other in others]
    return "; ".join([f"{short[provider]} {count}", *rest])


def _operators(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in ordered)


def _integer_products(proof: Mapping[str, Any] | None) -> str:
    if proof is None:
        return "–"
    count = sum(proof["census"]["integer_products"].values())
    return f"{count} of {count + proof['census']['float_weight_products']}"
