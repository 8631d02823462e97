"""The ledger adds up: what a peak was made of, stage by stage and phase by phase, beside its budgets."""

from pathlib import Path
from typing import Any

import pytest

from tftq.memory.ledger import COMPONENTS, Row, ledgers, read_records, stack_at_peak, stack_of
from tftq.spec.units import MIB


def record(stage: str, phase: str, peak: int | None, **parts: int) -> dict[str, Any]:
    """A line of memory.jsonl of a run on the CPU, MiB."""
    made_of = None if peak is None else {name: parts.get(name, 0) * MIB for name in COMPONENTS}
    return {"stage": stage, "phase": phase, "peak": peak and peak * MIB, "components": None, "peak_components": made_of}


RECORDS = [
    record("train", "EPOCH_START", 400, parameters=310, activations=90),
    record("train", "TRAIN_BATCH_0", 700, parameters=310, gradients=50, activations=200, workspace=30, optimizer=100, left_over=10),
    record("train", "TRAIN_BATCH_50", 600, parameters=310, activations=290),
    record("train", "EPOCH_END", None),
    record("qat", "TRAIN_BATCH_0", 900, parameters=900),
]


def test_rows_are_the_most_of_each_kind() -> None:
    """Activations were most at batch 50, everything else at batch 0."""
    rows = {row.name: row for row in ledgers(RECORDS, budget_mb=650)["train"].rows}
    measured = {name: row.measured_bytes and row.measured_bytes / MIB for name, row in rows.items()}
    assert measured == {"parameters": 310, "forward": 290, "backward": 50, "optimizer": 100, "left over": 10, "peak": 700}
    assert {name: row.verdict for name, row in rows.items()} == {
        **{"parameters": "over by 10.0", "forward": "over by 90.0", "backward": "within", "optimizer": "within"},
        **{"left over": "", "peak": "over by 50.0"},
    }


def test_gradients_that_are_live_after_the_peak_count() -> None:
    after = {**record("train", "TRAIN_BATCH_0", 500, gradients=20), "components": {"gradients": 80 * MIB}}
    rows = {row.name: row.measured_bytes for row in ledgers([after], budget_mb=650)["train"].rows}
    assert rows["backward"] == 80 * MIB


def test_a_large_budget_leaves_the_peak_the_one_it_had() -> None:
    assert ledgers(RECORDS, budget_mb=4096)["qat"].rows[-1] == Row("peak", 900 * MIB, 1000 * MIB)


def test_each_phase_has_the_stack_of_its_highest_peak() -> None:
    train = ledgers(RECORDS, budget_mb=4096)["train"]
    assert list(train.phases) == ["EPOCH_START", "TRAIN_BATCH", "EPOCH_END"]
    assert train.phases["TRAIN_BATCH"] == stack_of(RECORDS[1])
    assert set(train.phases["EPOCH_END"].values()) == {None}  # not measured is not 0
    assert stack_at_peak(RECORDS) == stack_of(RECORDS[4])


def test_a_gpu_tells_what_is_live_and_the_rest_of_its_peak_is_activations() -> None:
    live = {"parameters": 5, "gradients": 2, "optimizer": 10, "left_over": 1}
    found = stack_of({"peak": 30, "components": live, "peak_components": None})
    assert found == {**live, "activations": 12, "workspace": None}


def test_a_gpus_gradients_are_those_of_the_record_that_has_most() -> None:
    live = {"parameters": 5, "gradients": 0, "optimizer": 10, "left_over": 0}
    batch = {"phase": "TRAIN_BATCH_0", "peak": 25, "components": {**live, "gradients": 5}, "peak_components": None}
    after = {"phase": "AFTER_TRAINING", "peak": 30, "components": live, "peak_components": None}  # they are freed by then
    found = stack_at_peak([batch, after])
    assert (found["gradients"], found["activations"]) == (5, 10)


def test_nothing_measured_is_said_to_be_so() -> None:
    rows = ledgers([record("train", "EPOCH_START", None)], budget_mb=4096)["train"].rows
    assert {row.verdict for row in rows} == {"not measured"}
    assert set(stack_at_peak([]).values()) == {None}


def test_it_can_be_read_back(tmp_path: Path) -> None:
    (tmp_path / "memory.jsonl").write_text('{"phase": "EPOCH_START"}\n{"phase": "EPOCH_END"}\n')
    assert [line["phase"] for line in read_records(tmp_path / "memory.jsonl")] == ["EPOCH_START", "EPOCH_END"]


def test_plain_types() -> None:
    found = ledgers(RECORDS, budget_mb=4096)["train"].as_dict()
    assert found["rows"][3] == {"name": "optimizer", "measured_bytes": 100 * MIB, "budget_bytes": 200 * MIB, "verdict": "within"}
    assert found["phases"]["TRAIN_BATCH"]["workspace"] == 30 * MIB
    assert pytest.approx(sum(found["phases"]["TRAIN_BATCH"].values())) == 700 * MIB
