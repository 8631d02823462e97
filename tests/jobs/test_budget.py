"""A run in little memory: forward passes as large as its budget allows, every byte on the books, and a probe that fails once."""

import json
import math
from collections.abc import Callable

import psutil
import pytest

from tests.runs import Run
from tftq.memory.ledger import COMPONENTS
from tftq.memory.probe import MemoryProbe, Reading
from tftq.memory.timeline import PHASES

MIB = 2**20
RECIPE = """\
name: little
device: cpu
data: {kind: table, path: table.csv, time: time, target: y, calendar: [hour], season: 24, lookback: 48, horizon: 4}
model: {hidden: 32, knots: 16}
train: {batch_size: 64, epochs: 1}
memory: {budget_mb: 4}
"""
VALIDATION_END = PHASES.index("VALIDATION_END")


@pytest.fixture(scope="module")
def little_run(do_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("little")
    rows = [f"2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00,{math.sin(hour / 3):.4f}" for hour in range(600)]
    (folder / "table.csv").write_text("\n".join(["time,y", *rows]))
    (folder / "recipe.yaml").write_text(RECIPE)

    class Denied:
        def memory_info(self) -> None:
            raise psutil.AccessDenied

    whole, reads = MemoryProbe.read, []

    def read(self: MemoryProbe) -> Reading:
        process = self._process
        if len(reads) == VALIDATION_END:
            self._process = Denied()  # type: ignore[assignment]
        reads.append(whole(self))
        self._process = process
        return reads[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryProbe, "read", read)
        return do_run(str(folder / "recipe.yaml"), folder / "run")


def test_forward_passes_are_as_large_as_the_budget_allows(little_run: Run) -> None:
    assert "windows, so that the planned peak stays within memory.budget_mb" in little_run.printed
    memory = little_run.summary["memory"]
    assert memory["planned_peak_bytes"] <= 4 * MIB and memory["peak_bytes"] <= 4 * MIB
    assert little_run.summary["updates"] == math.ceil(434 / 64)  # an update is computed from 64 of the 434 windows still


def test_every_byte_of_the_peak_is_on_the_books(little_run: Run) -> None:
    memory = little_run.summary["memory"]
    assert tuple(memory["components"]) == COMPONENTS
    assert sum(memory["components"].values()) == memory["peak_bytes"]
    rows = {row["name"]: row for row in memory["ledger"]["train"]["rows"]}
    assert rows["peak"] == {"name": "peak", "measured_bytes": memory["peak_bytes"], "budget_bytes": 4 * MIB, "verdict": "within"}
    assert "Memory of train at its peak" in little_run.printed
    for line in (little_run.folder / "memory.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert sum(record["components"].values()) == record["allocated"]
        assert sum(record["peak_components"].values()) == record["peak"]
        assert min(record["peak_components"].values()) >= 0


def test_a_probe_that_fails_once_is_eight_of_nine(little_run: Run) -> None:
    memory = little_run.summary["memory"]
    assert (memory["checkpoints_recorded"], memory["checkpoints_expected"]) == (8, 9)
    assert len(memory["missing"]) == 1 and memory["missing"][0].startswith("train epoch 1 VALIDATION_END: rss: AccessDenied")
    record = json.loads((little_run.folder / "memory.jsonl").read_text().splitlines()[VALIDATION_END])
    assert record["phase"] == "VALIDATION_END" and record["rss"] is None and record["allocated"] > 0  # the other figures stand
    assert "8 of 9 records" in little_run.printed and memory["missing"][0] in little_run.printed
    page = (little_run.folder / "report.html").read_text(encoding="utf-8")
    assert "8 of 9 memory records, see Memory" in page and memory["missing"][0] in page
