"""Compute a page's section on the epochs: loss and learning rate, one stage after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tftq.report.chart import line_chart
from tftq.report.run_files import RunFiles
from tftq.spec.stages import STAGES


@dataclass(frozen=True)
class Epochs:
    """The epochs of all stages.

    Attributes:
        charts: of the losses and of the learning rates.
        rates: names of the learning rates; param groups whose rates never differ are one.
        rows: of each epoch its label, training loss, validation loss and learning rates.
    """

    charts: list[Markup]
    rates: list[str]
    rows: list[tuple[str, list[float | None]]]


def epochs(files: RunFiles) -> Epochs:
    """Collect the epochs of a run."""
    lines = [(stage, line) for stage, stage_lines in files.stages.items() for line in stage_lines]
    labels = [epoch_label(stage, line["epoch"]) for stage, line in lines]
    shades = stage_shades([stage for stage, _ in lines])

    def course(value: Callable[[dict[str, Any]], float | None]) -> list[float | None]:
        return [value(line) for _, line in lines]

    losses = {
        "train": course(lambda line: line["train_loss"]),
        "validation": course(lambda line: None if line["val"] is None else line["val"]["loss"]),
    }
    names = {name: None for _, line in lines for name in line["lr"]}
    rates = _merge_equal({name: [line["lr"].get(name) for _, line in lines] for name in names})
    series = (*losses.values(), *rates.values())
    return Epochs(
        [
            line_chart("Quantile loss", losses, labels, axis="epoch", shades=shades),
            line_chart("Learning rate at each epoch's last update", rates, labels, axis="epoch", shades=shades),
        ],
        [f"lr of {name}" for name in rates],
        [(label, [values[column] for values in series]) for column, label in enumerate(labels)],
    )


def epoch_label(stage: str, epoch: int) -> str:
    """Name an epoch: "3", or "q3" in QAT."""
    return f"{STAGES[stage].epoch_prefix}{epoch}"


def stage_shades(stages: Sequence[str]) -> dict[int, str]:
    """Map the first column of each stage after training to the name of its shade."""
    return {stages.index(name): stage.title for name, stage in STAGES.items() if stage.fine_tunes and name in stages}


def _merge_equal(series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Merge series that never differ into one, because one line would hide another."""
    names: dict[tuple[float | None, ...], list[str]] = {}
    for name, values in series.items():
        names.setdefault(tuple(values), []).append(name)
    return {", ".join(together): list(values) for values, together in names.items()}
