"""The stages of training that a run may have, in their order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage of training.

    Args:
        name: in recipes, summary.json and memory.jsonl.
        title: a noun phrase for progress bars, reports and messages.
        folder: of its metrics.jsonl and checkpoints/, in the run's folder.
        epoch_prefix: the prefix of its epochs' numbers in a report.
        fine_tunes: whether it trains a changed model further, and so ends no worse than it began.
    """

    name: str
    title: str
    folder: str
    epoch_prefix: str
    fine_tunes: bool


STAGES = {
    stage.name: stage
    for stage in (
        Stage("train", "training", ".", "", fine_tunes=False),
        Stage("prune", "pruned", "prune", "p", fine_tunes=True),
        Stage("qat", "QAT", "qat", "q", fine_tunes=True),
    )
}
