"""Checkpoints on the disk: whole or not there, plain, and refused with a reason."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.train.stand_ins import tiny_trainer
from tftq.errors import CheckpointError
from tftq.train import checkpoint
from tftq.train.checkpoint import load_checkpoint, load_model, random_state, restore_random_state, save_checkpoint


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.arange(3.0), "update": 4, "risk": {0.5: 0.25}})
    content = load_checkpoint(path)
    assert torch.equal(content.pop("weights"), torch.arange(3.0))
    assert content == {"format": 2, "update": 4, "risk": {0.5: 0.25}}
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_failing_write_leaves_the_checkpoint_before_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"update": 1})

    def full(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, {"update": 2})
    assert load_checkpoint(path)["update"] == 1
    assert os.listdir(tmp_path) == ["last.pt"]


def test_the_file_is_on_the_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(checkpoint.os, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1])
    save_checkpoint(tmp_path / "last.pt", {})
    assert calls[:2] == ["fsync", "replace"]
    assert calls[2:] == (["fsync"] if os.name == "posix" else [])


def test_a_missing_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.pt: no checkpoint there"):
        load_checkpoint(tmp_path / "none.pt")
    whole = tmp_path / "whole.pt"
    save_checkpoint(whole, {"weights": torch.zeros(1000)})
    for name, damaged in {"cut": whole.read_bytes()[:2000], "empty": b"", "text": b"not a checkpoint"}.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name}: damaged, or no checkpoint of tftq"):
            load_checkpoint(tmp_path / name)
    for content, found in (({"format": 0}, "format 0"), ([1], "format list")):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(CheckpointError, match=rf"{found} cannot be read; allowed: 2"):
            load_checkpoint(tmp_path / "other.pt")


class Malicious:
    ran = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (Malicious, "ran", True)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save({"format": 2, "code": Malicious()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match="damaged, or no checkpoint"):
        load_checkpoint(tmp_path / "bad.pt")
    assert not Malicious.ran


def test_a_model_of_other_shapes_is_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)best\.pt: of another model.*size mismatch for weight"):
        load_model(nn.Linear(2, 2), {"model": nn.Linear(3, 2).state_dict()}, tmp_path / "best.pt")


def test_every_random_generator_continues(tmp_path: Path) -> None:
    random.gauss(0, 1), np.random.standard_normal()  # both keep half of a pair for later
    save_checkpoint(tmp_path / "random.pt", random_state())

    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand(), torch.rand(()).item()]

    first = draw()
    assert draw() != first
    restore_random_state(load_checkpoint(tmp_path / "random.pt"))
    assert draw() == first


def test_both_files_of_a_training_are_plain_and_best_serves_without_the_optimizer(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path)
    trainer.fit()
    best = load_checkpoint(trainer.checkpoints.best)
    assert best.keys() == {"format", "recipe", "model", "epoch", "validation"}
    assert best["recipe"] == "name: tiny\n"
    assert load_checkpoint(trainer.checkpoints.last).keys() == {
        "format",
        "recipe",
        "plan",
        "model",
        "optimizer",
        "scaler",
        "state",
        "validator",
        "random",
    }
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["best.pt", "last.pt"]


def test_a_flipped_byte_in_the_middle_is_noticed(tmp_path: Path) -> None:
    """torch itself reads past it and gives other weights."""
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": {"weight": torch.arange(4096.0)}})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
