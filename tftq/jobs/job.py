"""The frame of every job: announce it, keep the status in its folder, and write the summary and the report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tftq.console import Console
from tftq.jobs.folder import RunFolder
from tftq.recipe.schema import JobRecipe
from tftq.spec.summary import Summary

R = TypeVar("R", bound=JobRecipe)
S = TypeVar("S", bound=Summary)


@dataclass(frozen=True)
class Job(Generic[R]):
    """A run and its folder.

    Args:
        recipe: of the run.
        folder: its folder.
        console: where it prints.
    """

    recipe: R
    folder: RunFolder
    console: Console

    def announce(self, device: str | None = None) -> None:
        """Print the recipe's name, where it computes, and its folder."""
        place = "" if device is None else f" on {device},"
        self.console.print_line(f"{self.recipe.name}{place} into {self.folder.path}", style="bold")

    def record(
        self,
        work: Callable[[], S],
        write_report: Callable[[Path, S], Path | None],
        *,
        seed: int | None = None,
    ) -> S:
        """Do the work, and write summary.json and the report; a run that is stopped or fails leaves its status.

        Args:
            work: returns the summary.
            write_report: writes the report, from the run's folder and its summary, and returns its path; None where there is none.
            seed: of the random generators, for the summary of a run that is under way, stopped or failed.

        Returns:
            The summary.

        Raises:
            RunFolderError: another process writes to the folder.
        """
        about = {"name": self.recipe.name} if seed is None else {"name": self.recipe.name, "seed": seed}
        with self.folder.recording(**about):
            summary = work()
            self.folder.write_json("summary.json", summary.as_dict())
            report = write_report(self.folder.path, summary)
        if report is not None:
            self.console.print_line(f"report: {report}")
        return summary
