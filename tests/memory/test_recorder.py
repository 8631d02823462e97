"""A watch knows what belongs to whom, however it came to be there."""

import weakref
from pathlib import Path

import torch
from torch import nn

from tftq.memory.ledger import read_records
from tftq.memory.timeline import MemoryRecorder


def test_state_that_a_checkpoint_brought_is_the_optimizers(tmp_path: Path) -> None:
    def stepped() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(100, 100, bias=False)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    before, optimizer = stepped()
    before(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()

    watch = MemoryRecorder(tmp_path / "memory.jsonl", torch.device("cpu"))
    model, resumed = stepped()
    with watch.recording(model):
        watch.follow(model, resumed)
        resumed.load_state_dict({**saved, "state": {0: {"momentum_buffer": torch.ones(100, 100)}}})
        watch.timeline.record("EPOCH_START", 1)
        watch.timeline.record("TRAIN_BATCH_0", 1)
    _, record = read_records(tmp_path / "memory.jsonl")
    assert record["peak_components"]["optimizer"] == record["components"]["optimizer"] == 40_000
    assert record["components"]["parameters"] == 40_000


def test_nothing_of_a_stage_lives_on_when_it_is_over(tmp_path: Path) -> None:
    watch = MemoryRecorder(tmp_path / "memory.jsonl", torch.device("cpu"))
    model = nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gone = weakref.ref(model.weight)
    with watch.recording(model):
        watch.follow(model, optimizer)
    del model, optimizer
    assert gone() is None
    following = nn.Linear(10, 10, bias=False)
    with watch.recording(following):
        watch.follow(following, torch.optim.SGD(following.parameters(), lr=0.1))
        watch.timeline.record("EPOCH_START", 1)
    (record,) = read_records(tmp_path / "memory.jsonl")
    assert record["allocated"] == record["peak"] == 400
