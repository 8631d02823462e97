"""The shared frame of the jobs that train: the budget, the memory that is watched, and the models that are published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from tftq.console import Console
from tftq.data.windows import Datasets
from tftq.export.publish import PUBLISHED, Proven, publish
from tftq.jobs.environment import device_of_torch, environment
from tftq.jobs.folder import RunFolder
from tftq.jobs.job import Job
from tftq.memory.ledger import ledgers, read_records, stack_at_peak
from tftq.memory.timeline import MemoryRecorder
from tftq.plan.phases import RunPlan
from tftq.recipe.schema import RunRecipe
from tftq.report.console import ledger_table, memory_line
from tftq.spec.summary import MemorySummary, Summary
from tftq.train.oom import explain_out_of_memory

R = TypeVar("R", bound=RunRecipe)
S = TypeVar("S", bound=Summary)


@dataclass(frozen=True)
class TrainingJob(Job[R]):
    """A run that trains.

    Args:
        device: where it computes.
        data: that it learns from.
        plan: of its memory.
        watch: of its memory.
    """

    device: torch.device
    data: Datasets
    plan: RunPlan
    watch: MemoryRecorder

    @classmethod
    def open(
        cls, recipe: R, device: torch.device, data: Datasets, plan: RunPlan, *, resume: bool, console: Console | None, **more: Any
    ) -> Self:
        """Check the budget, open the run's folder, and begin to watch memory.

        Args:
            recipe: of the run.
            device: where it computes.
            data: that it learns from; a note is added where memory can only be measured roughly.
            plan: of its memory.
            resume: resume the run in its folder.
            console: where it prints; standard output by default.
            more: arguments of a derived class.

        Raises:
            PlanError: the plan does not fit.
            RunFolderError: the folder cannot be written or resumed.
        """
        plan.require_fit()
        folder = RunFolder.open(recipe, environment(device_of_torch(device), recipe.seed), resume=resume)
        watch = MemoryRecorder(folder.path / "memory.jsonl", device)
        if watch.probe.note is not None:
            data.notes.append(watch.probe.note)
        job = cls(recipe, folder, console or Console(), device, data, plan, watch, **more)
        job.announce(str(device))
        for note in data.notes:
            job.console.print_line(f"  {note}")
        return job

    def train(self, work: Callable[[], S], write_report: Callable[[Path], Path], *, advice: str) -> S:
        """Do the work as `record` does, with advice where memory runs out and the work cannot be repeated in smaller parts."""

        def advised() -> S:
            with explain_out_of_memory(advice):
                return work()

        return self.record(advised, lambda folder, _: write_report(folder), seed=self.recipe.seed)

    def memory_summary(self, planned: int) -> MemorySummary:
        """Print the run's memory over its phases, and return it for summary.json.

        Args:
            planned: the peak that was planned, in bytes.
        """
        records = read_records(self.folder.path / "memory.jsonl")
        stages = ledgers(records, self.plan.memory.budget_mb)
        for stage, ledger in stages.items():
            self.console.print_table(ledger_table(stage, ledger))
        self.console.print_line(memory_line(self.watch.timeline, planned))
        return MemorySummary(
            **self.watch.timeline.summary(),
            planned_peak_bytes=planned,
            components=stack_at_peak(records),
            ledger={stage: ledger.as_dict() for stage, ledger in stages.items()},
        )

    def publish(self, exported: Mapping[Any, Proven]) -> None:
        """Copy exported models to where ensembles load them from."""
        folder = PUBLISHED / self.recipe.name
        publish(exported, folder)
        self.console.print_line(f"published: {', '.join(exported)} in {folder}")
