"""What every job does around its work."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tftq.console import Console
from tftq.jobs.folder import RunFolder
from tftq.jobs.job import Job
from tftq.recipe.schema import JobRecipe
from tftq.spec.summary import Summary


@dataclass
class Done(Summary):
    """A summary of two fields."""

    name: str
    bars: int


@pytest.fixture
def job(tmp_path: Path) -> Job[JobRecipe]:
    return Job(JobRecipe(name="first"), RunFolder(tmp_path), Console(io.StringIO()))


def printed(job: Job[JobRecipe]) -> str:
    assert isinstance(job.console.file, io.StringIO)
    return job.console.file.getvalue()


def test_summary_then_report_then_its_path(job: Job[JobRecipe]) -> None:
    def work() -> Done:
        assert json.loads((job.folder.path / "summary.json").read_text()) == {"name": "first", "seed": 7, "status": "running"}
        return Done("first", 3)

    def report(folder: Path, summary: Done) -> Path:
        assert json.loads((folder / "summary.json").read_text()) == {"name": "first", "bars": 3} == summary.as_dict()
        return folder / "report.html"

    job.announce("cpu")
    assert job.record(work, report, seed=7) == Done("first", 3)
    assert printed(job) == f"first on cpu, into {job.folder.path}\nreport: {job.folder.path / 'report.html'}\n"


def test_without_a_report_none_is_printed(job: Job[JobRecipe]) -> None:
    job.announce()
    job.record(lambda: Done("first", 0), lambda folder, summary: None)
    assert printed(job) == f"first into {job.folder.path}\n"


def test_work_that_fails_leaves_its_status(job: Job[JobRecipe]) -> None:
    def fail() -> Done:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        job.record(fail, lambda folder, summary: None)
    assert json.loads((job.folder.path / "summary.json").read_text())["status"] == "failed: OSError: disk full"
    assert printed(job) == ""
