"""Interrupted and resumed equals uninterrupted, bit for bit on the CPU; and what cannot be resumed is refused."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.stand_ins import TinyModel, TinyWindows, metrics_lines, tiny_trainer
from tftq.errors import CheckpointError
from tftq.recipe.schema import OptimizerRecipe, ScheduleRecipe
from tftq.train.resume import Resumable
from tftq.train.state import Training
from tftq.train.trainer import Trainer

OPTIONS: dict[str, Any] = {
    "windows": 15,  # 8 groups an epoch, the last of one window; 24 updates in all
    "optimizer": OptimizerRecipe(lr=1e-2, groups={"head.*": 3e-2}),
    "schedule": ScheduleRecipe(warmup=0.3, cooldown=0.5),
}


class Interrupted(Exception):
    pass


class Traced:
    """One process of a training: its trainer, and the rates, windows and phases it went through."""

    def __init__(self, folder: Path, *, stop_at: int | None = None, seed: int = 0, **options: Any) -> None:
        self.rates: list[list[float]] = []
        self.updates: list[int] = []
        self.windows = TinyWindows(OPTIONS["windows"])
        self.stop_at = stop_at
        given = {**OPTIONS, **options}
        self.trainer: Trainer = tiny_trainer(
            folder, TinyModel(seed, dropout=0.5), train=self.windows, on_update=self.on_update, timeline=self, **given
        )
        self.trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *_: self.rates.append([group["lr"] for group in optimizer.param_groups])
        )
        self.phases: list[tuple[str, int]] = []

    def record(self, phase: str, epoch: int) -> None:
        self.phases.append((phase, epoch))

    def on_update(self, update: int) -> None:
        self.updates.append(update)
        if update == self.stop_at:
            raise Interrupted

    def interrupt(self) -> "Traced":
        with pytest.raises(Interrupted):
            self.trainer.fit()
        return self


def scramble() -> None:
    """Leave every random generator where a fresh process would not find it."""
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)


def assert_equal_weights(ours: Traced, theirs: Traced) -> None:
    mine, other = ours.trainer.model.state_dict(), theirs.trainer.model.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    ours_last, theirs_last = (
        torch.load(ours.trainer.checkpoints.last)["optimizer"],
        torch.load(theirs.trainer.checkpoints.last)["optimizer"],
    )
    for index, state in ours_last["state"].items():
        assert all(torch.equal(value, theirs_last["state"][index][name]) for name, value in state.items())


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "samples_per_s"} for line in metrics_lines(folder)]


def without_rate(result: Training) -> tuple[Any, ...]:
    return result.updates, result.skipped, result.best_epoch, result.validation


@pytest.mark.parametrize(
    ("stop_at", "checkpoint_every", "redone_from"),
    [
        pytest.param(10, None, 8, id="in an epoch, from its beginning"),
        pytest.param(13, 3, 12, id="in an epoch, from its middle"),
        pytest.param(10, 1, 10, id="at the very update"),
        pytest.param(8, 8, 8, id="between epochs"),
        pytest.param(17, 4, 16, id="after the first update of an epoch"),
    ],
)
def test_resumed_equals_uninterrupted(tmp_path: Path, stop_at: int, checkpoint_every: int | None, redone_from: int) -> None:
    """Bit for bit, with the same batches, rates and random numbers."""
    whole = Traced(tmp_path / "whole", checkpoint_every=checkpoint_every)
    torch.manual_seed(5)
    uninterrupted = whole.trainer.fit()

    first = Traced(tmp_path / "parts", checkpoint_every=checkpoint_every, stop_at=stop_at)
    torch.manual_seed(5)
    first.interrupt()
    second = Traced(tmp_path / "parts", checkpoint_every=checkpoint_every, seed=1)
    scramble()
    resumed = second.trainer.fit(resume=True)

    assert len(whole.rates) == 24
    assert second.rates[0] == whole.rates[redone_from], "the first rate after resuming is the one of the saved update"
    assert first.rates == whole.rates[:stop_at]
    assert second.rates == whole.rates[redone_from:]
    assert first.windows.asked[:redone_from] + second.windows.asked == whole.windows.asked
    assert second.updates == [redone_from - 1, *range(redone_from, 24)], "the hook sees the state at the checkpoint, then each update"
    assert_equal_weights(second, whole)
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    assert without_rate(resumed) == without_rate(uninterrupted)
    assert second.phases[0] == ("EPOCH_START", redone_from // 8 + 1)


def test_dropout_is_on_in_these_tests(tmp_path: Path) -> None:
    runs = []
    for seed in (5, 6):
        run = Traced(tmp_path / str(seed))
        torch.manual_seed(seed)
        run.trainer.fit()
        runs.append(run.trainer.model.head.weight)
    assert not torch.equal(*runs)


def test_a_finished_training_resumes_to_its_result(tmp_path: Path) -> None:
    first = Traced(tmp_path)
    result = first.trainer.fit()
    again = Traced(tmp_path, seed=1)
    assert again.trainer.fit(resume=True) == result
    assert again.rates == []
    assert_equal_weights(again, first)


def test_interrupted_in_a_validation_resumes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Traced(tmp_path / "whole", checkpoint_every=4)
    torch.manual_seed(5)
    uninterrupted = whole.trainer.fit()
    run = Traced(tmp_path / "parts", checkpoint_every=4)

    def interrupted(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr(run.trainer, "_validation", interrupted)
    torch.manual_seed(5)
    run.interrupt()
    again = Traced(tmp_path / "parts", checkpoint_every=4)
    assert without_rate(again.trainer.fit(resume=True)) == without_rate(uninterrupted)
    assert again.phases[:3] == [("EPOCH_START", 1), ("AFTER_TRAINING", 1), ("BEFORE_VALIDATION", 1)]
    assert_equal_weights(again, whole)
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")


def test_early_stopping_resumes_as_it_stood(tmp_path: Path) -> None:
    options = {"epochs": 12, "patience": 2, "optimizer": OptimizerRecipe(lr=1e-12, groups={"head.*": 1e-12})}
    whole = Traced(tmp_path / "whole", **options)
    torch.manual_seed(5)
    uninterrupted = whole.trainer.fit()
    assert uninterrupted.updates < 96, "it must stop early"
    first = Traced(tmp_path / "parts", stop_at=uninterrupted.updates - 4, **options)
    torch.manual_seed(5)
    first.interrupt()
    resumed = Traced(tmp_path / "parts", **options).trainer.fit(resume=True)
    assert without_rate(resumed) == without_rate(uninterrupted)


def test_a_resumed_fp16_training_scales_as_saved(tmp_path: Path) -> None:
    def overflow_once(run: Traced) -> None:
        backward = iter([math.inf])
        run.trainer.model.head.weight.register_hook(lambda gradient: gradient * next(backward, 1.0))

    whole = Traced(tmp_path / "whole", precision="fp16")
    overflow_once(whole)
    torch.manual_seed(5)
    whole.trainer.fit()
    first = Traced(tmp_path / "parts", precision="fp16", stop_at=10, checkpoint_every=1)
    overflow_once(first)
    torch.manual_seed(5)
    first.interrupt()
    second = Traced(tmp_path / "parts", precision="fp16")
    fresh = second.trainer.scaler.get_scale()
    scales: list[float] = []
    second.trainer.optimizer.register_step_pre_hook(lambda *_: scales.append(second.trainer.scaler.get_scale()))
    second.trainer.fit(resume=True)
    assert scales[0] == first.trainer.scaler.get_scale() == fresh / 2
    assert second.trainer.state.update == whole.trainer.state.update == 23
    assert_equal_weights(second, whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "others"}, r"-data: \n\+data: others"),
        ({"windows": 14}, r"-windows: 15\n\+windows: 14"),
        ({"seed": 4}, r"-seed: 3\n\+seed: 4"),
        ({"epochs": 4}, r"-total: 24\n.*\+total: 32"),
        ({"optimizer": OptimizerRecipe(lr=2e-2, groups={"head.*": 3e-2})}, r"-weights: lr 0\.01, 1 parameters\n.*\+weights: lr 0\.02"),
    ],
)
def test_another_training_is_refused_with_what_changed(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    Traced(tmp_path, stop_at=10).interrupt()
    windows = TinyWindows(changed.pop("windows", OPTIONS["windows"]))
    trainer = tiny_trainer(tmp_path, TinyModel(), **{**OPTIONS, "train": windows, "seed": 3, **changed})
    with pytest.raises(CheckpointError, match=r"(?s)last\.pt: of another training; resume with .*" + message):
        trainer.fit(resume=True)


def test_another_model_is_refused_with_its_weights_named(tmp_path: Path) -> None:
    Traced(tmp_path, stop_at=10).interrupt()
    model = TinyModel()
    model.register_buffer("extra", torch.zeros(1))
    with pytest.raises(CheckpointError, match=r'(?s)of another model.*"extra"'):
        tiny_trainer(tmp_path, model, **OPTIONS).fit(resume=True)


def test_resuming_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"last\.pt: no checkpoint there"):
        tiny_trainer(tmp_path).fit(resume=True)


def test_an_interruption_between_a_line_and_its_checkpoint_leaves_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Traced(tmp_path)
    save, epochs = run.trainer.checkpoints.save_last, iter([1])

    def interrupted_at_the_second_epoch(training: Resumable) -> None:
        if next(epochs, None) is None:
            raise Interrupted
        save(training)

    monkeypatch.setattr(run.trainer.checkpoints, "save_last", interrupted_at_the_second_epoch)
    run.interrupt()
    assert [line["epoch"] for line in metrics_lines(tmp_path)] == [1, 2]
    Traced(tmp_path).trainer.fit(resume=True)
    assert [line["epoch"] for line in metrics_lines(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("stop_at", "note"),
    [(3, "training would resume from its beginning"), (13, "training would resume at epoch 2, update 12")],
)
def test_ctrl_c_tells_where_resuming_goes_on(tmp_path: Path, stop_at: int, note: str) -> None:
    def interrupt(update: int) -> None:
        if update == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        tiny_trainer(tmp_path, on_update=interrupt, checkpoint_every=12).fit()
    assert caught.value.__notes__ == [note]
    if stop_at == 13:
        again = tiny_trainer(tmp_path, on_update=interrupt, checkpoint_every=12)
        with pytest.raises(KeyboardInterrupt) as caught:
            again.fit(resume=True)
        assert caught.value.__notes__ == [note], "a resumed one knows it too"
