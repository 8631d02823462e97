"""The records of an epoch, their tally, and what is missing."""

import json
from pathlib import Path

import pytest
import torch

from tftq.memory.counter import ByteCounter
from tftq.memory.probe import MemoryProbe, Reading, Source
from tftq.memory.timeline import PHASES, Timeline

EPOCH = [phase if phase != "TRAIN_BATCH" else "TRAIN_BATCH_0" for phase in PHASES]
VALIDATION = EPOCH[3:7]


class Probe:
    """Says what it is told to."""

    source: Source = "counter"

    def __init__(self) -> None:
        self.peak, self.resets = 0, 0
        self.error: str | None = None

    def read(self) -> Reading:
        return Reading(None if self.error else 5, None, None if self.error else self.peak, None, 7, self.error)

    def reset_peak(self) -> None:
        self.resets += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.jsonl"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_whole_epoch_is_nine_of_nine(path: Path) -> None:
    probe = Probe()
    timeline = Timeline(path, probe)
    assert (str(timeline), timeline.peak_bytes) == ("0 of 0", None)
    for probe.peak, phase in enumerate(EPOCH):
        timeline.record(phase, 1)
    assert str(timeline) == "9 of 9"
    assert probe.resets == 9
    assert [line["phase"] for line in lines(path)] == EPOCH
    assert lines(path)[2] == {
        "stage": "train",
        "epoch": 1,
        "phase": "AFTER_TRAINING",
        "source": "counter",
        "allocated": 5,
        "reserved": None,
        "peak": 2,
        "device_free": None,
        "rss": 7,
        "error": None,
        "components": None,
        "peak_components": None,
    }
    assert timeline.summary() == {
        "source": "counter",
        "peak_bytes": 8,
        "checkpoints_expected": 9,
        "checkpoints_recorded": 9,
        "missing": [],
    }


@pytest.mark.parametrize("missing", EPOCH)
def test_a_phase_that_is_never_recorded(path: Path, missing: str) -> None:
    timeline = Timeline(path, Probe())
    for phase in EPOCH:
        if phase != missing:
            timeline.record(phase, 1)
    assert str(timeline) == "8 of 9"
    assert timeline.missing == [f"train epoch 1 {missing.removesuffix('_0')}: never recorded"]


def test_a_probe_that_fails_writes_its_error_and_never_a_zero(path: Path) -> None:
    probe = Probe()
    timeline = Timeline(path, probe)
    for phase in EPOCH:
        probe.error = "peak: RuntimeError: no" if phase == "VALIDATION_END" else None
        timeline.record(phase, 1)
    assert str(timeline) == "8 of 9"
    assert timeline.missing == ["train epoch 1 VALIDATION_END: peak: RuntimeError: no"]
    (failed,) = [line for line in lines(path) if line["error"]]
    assert (failed["allocated"], failed["peak"]) == (None, None)


def test_every_further_batch_is_owed_too(path: Path) -> None:
    probe = Probe()
    timeline = Timeline(path, probe)
    for phase in [*EPOCH, "TRAIN_BATCH_50"]:
        timeline.record(phase, 1)
    assert str(timeline) == "10 of 10"
    probe.error = "no"
    timeline.record("TRAIN_BATCH_100", 1)
    assert str(timeline) == "10 of 11"


def test_an_epoch_without_validation_does_not_owe_it(path: Path) -> None:
    timeline = Timeline(path, Probe())
    for phase in EPOCH:
        if phase not in VALIDATION:
            timeline.record(phase, 1)
    assert str(timeline) == "5 of 5"
    timeline.record("EPOCH_START", 2)
    assert str(timeline) == "6 of 14"  # an epoch that has begun owes all of its phases
    timeline.record("BEFORE_VALIDATION", 1)
    assert str(timeline) == "7 of 18"


def test_stages_count_their_epochs_apart(path: Path) -> None:
    timeline = Timeline(path, Probe())
    for timeline.stage in ("train", "qat"):
        for phase in EPOCH:
            timeline.record(phase, 1)
    assert str(timeline) == "18 of 18"
    assert [line["stage"] for line in lines(path)] == ["train"] * 9 + ["qat"] * 9


def test_a_resumed_training_goes_on_counting(path: Path) -> None:
    probe = Probe()
    probe.peak = 100
    first = Timeline(path, probe)
    for phase in EPOCH[:4]:
        first.record(phase, 1)
    path.write_bytes(path.read_bytes() + b'{"stage": "train", "ep')  # killed in the middle of a line
    probe.peak = 50
    second = Timeline(path, probe)
    assert str(second) == "4 of 9"
    for phase in ["EPOCH_START", *EPOCH[4:]]:  # the epoch is begun again
        second.record(phase, 1)
    assert str(second) == "9 of 9"
    assert second.peak_bytes == 100
    assert len(lines(path)) == 10


def test_the_process_stands_in_where_tensors_are_not_counted(path: Path) -> None:
    timeline = Timeline(path, MemoryProbe(torch.device("cpu")))
    timeline.record("EPOCH_START", 1)
    assert timeline.summary()["source"] == "rss"
    assert timeline.peak_bytes == lines(path)[0]["rss"]


def test_each_record_has_the_peak_since_the_last(path: Path) -> None:
    with ByteCounter() as counter:
        timeline = Timeline(path, MemoryProbe(torch.device("cpu"), counter))
        for count in (100, 10, 50):
            torch.zeros(count)
            timeline.record("EPOCH_START", 1)
    assert [line["peak"] for line in lines(path)] == [400, 40, 200]
    assert timeline.peak_bytes == 400


def test_a_record_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Timeline(tmp_path / "absent" / "memory.jsonl", Probe()).record("EPOCH_START", 1)


def test_phases_have_known_names(path: Path) -> None:
    with pytest.raises(AssertionError, match="LUNCH"):
        Timeline(path, Probe()).record("LUNCH", 1)
