"""Validation during training in the memory at hand: what gives way in which order, and that nothing else moves."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.reference import SMALL
from tests.model.small import example, small_model
from tests.train.stand_ins import RealWindows, TinyModel, TinyWindows, metrics_lines, tiny_trainer
from tftq.errors import OutOfMemoryError
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import validate
from tftq.memory.counter import ByteCounter
from tftq.model.batch import Batch
from tftq.plan.phases import plan_phases
from tftq.plan.training import Planner
from tftq.recipe.schema import OptimizerRecipe, TrainRecipe, ValidateRecipe
from tftq.train.checkpoint import load_checkpoint, save_checkpoint
from tftq.train.log import TrainingBar
from tftq.train.optimizer import build_optimizer
from tftq.train.stages import float_settings
from tftq.train.validate import Validator, copy_on_cpu, offloaded

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BAR = TrainingBar("test", 1, 1, CPU)
WORDS = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture(autouse=True)
def _made_up_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches stay in host memory, whatever device is asked for."""
    monkeypatch.setattr(Batch, "to", lambda batch, device: batch)


class Small(TinyModel):
    """Runs out of memory in eval mode where a batch is larger than `room`; a copy of it has all the room there is."""

    def __init__(self, room: int = 1_000, *, fail_at: int = -1) -> None:
        super().__init__()
        self.room, self.itself, self.fail_at = room, id(self), fail_at

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        forecast = super().forward(history, future, static)
        number = len(self.validation_batches()) - 1
        if not self.training and id(self) == self.itself and (len(history) > self.room or number == self.fail_at):
            raise torch.OutOfMemoryError(WORDS)
        return forecast


def validator(model: Small, *, offload: bool = False, **settings: Any) -> tuple[Validator, list[str]]:
    """On the made-up GPU, with an optimizer that has taken a step; and what it will have announced."""
    announced: list[str] = []
    optimizer = build_optimizer(model, OptimizerRecipe())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    made = Validator(
        model,
        TinyWindows(10, seed=2),
        replace(float_settings(TrainRecipe(), ValidateRecipe(**settings), seed=0), offload=offload),
        Precision("fp32", GPU),
        optimizer,
        announce=announced.append,
    )
    return made, announced


def test_what_gives_way_on_a_gpu_in_its_order_and_stays_so() -> None:
    model = Small(room=0)
    made, announced = validator(model)
    phases: list[str] = []
    found = made(4, BAR, phases.append)
    assert model.validation_batches() == [4, 4, 2, 1], "twice 4: without the optimizer's state the second time"
    start = f"validation: out of memory with {{}} windows to a forward pass (OutOfMemoryError: {WORDS}); this one and those to come "
    assert announced == [
        start.format(4) + "while the optimizer's state waits in host memory",
        start.format(4) + "with 2",
        start.format(2) + "with 1",
        start.format(1) + "on the CPU with 4; validate.device train would stop here instead",
    ]
    assert found == validate(copy.deepcopy(model), TinyWindows(10, seed=2), 4, Precision("fp32", CPU))
    assert phases == [*["VALIDATION_START"] * 5, "VALIDATION_END"]

    assert made(4, BAR) == found and len(announced) == 4 and len(model.validation_batches()) == 4, "it begins where it ended"
    again = Small(room=0)
    resumed, announced = validator(again)
    resumed.load_state_dict(copy.deepcopy(made.state_dict()))
    assert resumed(4, BAR).windows == 10 and again.validation_batches() == [] and announced == []


def test_what_the_recipe_fixes_does_not_give_way() -> None:
    model = Small(room=0)
    made, announced = validator(model, device="train", offload_optimizer="never")
    with pytest.raises(OutOfMemoryError, match=r"one window to a forward pass, after 4 at first \(OutOfMemory.*validate\.device to auto"):
        made(4, BAR)
    assert model.validation_batches() == [4, 2, 1] and len(announced) == 2
    assert model.training


@pytest.mark.parametrize(
    ("settings", "offload", "away"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"offload_optimizer": "never"}, True, False),
        ({"offload_optimizer": "always"}, False, True),
        ({"device": "cpu"}, True, False),
    ],
)
def test_the_optimizer_state_leaves_where_the_recipe_or_the_plan_says_so(settings: dict[str, Any], offload: bool, away: bool) -> None:
    made, _ = validator(Small(), offload=offload, **settings)
    places = {name: value.data_ptr() for name, value in _first_state(made).items()}
    seen: list[bool] = []

    def look(phase: str) -> None:
        seen.append(any(value.data_ptr() != places[name] for name, value in _first_state(made).items()))

    made(4, BAR, look)
    assert seen == [away, away]


def _first_state(made: Validator) -> dict[str, Tensor]:
    return next(iter(made.optimizer.state.values()))


def test_on_the_cpu_a_copy_is_validated_and_training_keeps_every_object() -> None:
    model = Small(room=0)
    made, announced = validator(model, device="cpu")
    parameters, states = list(model.parameters()), {id(key): dict(state) for key, state in made.optimizer.state.items()}
    pointers = [parameter.data_ptr() for parameter in parameters]
    found = made(4, BAR)
    assert found == validate(copy.deepcopy(model), TinyWindows(10, seed=2), 4, Precision("fp32", CPU))
    assert model.validation_batches() == [] and announced == []
    assert all(ours is before for ours, before in zip(model.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == pointers
    for key, state in made.optimizer.state.items():
        assert all(state[name] is value for name, value in states[id(key)].items())


def test_a_copy_on_the_cpu_is_whole_and_shares_nothing() -> None:
    """Of the real network, LSTM included."""
    model = small_model().eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made = copy_on_cpu(model)
    mine, other = model.state_dict(), made.state_dict()
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)
    assert not {value.data_ptr() for value in mine.values()} & {value.data_ptr() for value in other.values() if value.numel()}
    assert all(parameter.grad is None and parameter.requires_grad for parameter in made.parameters())
    inputs = example(model.inputs)
    with torch.no_grad():
        assert torch.equal(made(*inputs), model(*inputs))
        for parameter in made.parameters():
            parameter.zero_()
        assert not torch.equal(made(*inputs), model(*inputs)), "every layer computes with its own weights"


def test_what_the_plan_says_a_gpu_cannot_hold_is_validated_on_the_cpu() -> None:
    """A batch of 65,536 windows, far larger than that of training."""
    planner = Planner(SMALL.inputs(), SMALL.scaling(), SMALL.target_scaling(), GPU)
    recipe = SMALL.recipe("none", "fp32", 4)
    large = {"batch_size": 65_536, "offload_optimizer": "never"}
    plan = planner.plan(recipe.model_copy(update={"validate": ValidateRecipe(**large)}))["train"]
    budget = (planner.allowance_bytes + plan.update.peak_bytes) // 2**20 + 1
    assert plan.validation.peak_bytes > budget * 2**20 - planner.allowance_bytes > plan.update.peak_bytes

    memory = recipe.memory.model_copy(update={"budget_mb": budget})
    for device, away in (("train", False), ("cpu", True), ("auto", True)):
        asked = recipe.model_copy(update={"validate": ValidateRecipe(**large, device=device), "memory": memory})
        assert planner.validates_on_cpu(asked, plan) == away
        assert (planner.needed_bytes(asked, plan) <= budget * 2**20) == away
    (phase,) = (phase for phase in plan_phases(asked, planner, {"train": plan}) if phase.phase == "validate")
    assert phase.fits and phase.budget_bytes is None
    small = planner.plan(recipe)["train"]
    assert not planner.validates_on_cpu(recipe, small)
    assert planner.validates_on_cpu(recipe.model_copy(update={"validate": ValidateRecipe(device="cpu")}), small)
    on_a_cpu = Planner(SMALL.inputs(), SMALL.scaling(), SMALL.target_scaling(), CPU)
    assert not on_a_cpu.validates_on_cpu(recipe.model_copy(update={"validate": ValidateRecipe(device="cpu")}), small)


def test_settings_without_effect_on_the_cpu_are_warned_of(tmp_path: Path) -> None:
    for device in ("train", "cpu"):
        with pytest.warns(UserWarning, match=rf"validate\.device: {device} has no effect where training is on the CPU"):
            tiny_trainer(tmp_path, validate=ValidateRecipe(device=device))


def trained(folder: Path, model: Small, *, resume: bool = False, **options: Any) -> Any:
    trainer = tiny_trainer(folder, model, batch_size=8, epochs=2, **options)
    torch.manual_seed(5)
    return trainer, trainer.fit(resume=resume)


def without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("samples_per_s", *names)}


def test_memory_that_runs_out_in_validation_shrinks_its_batch_alone(tmp_path: Path) -> None:
    model, roomy = Small(room=2), Small()
    with pytest.warns(UserWarning, match="validation: out of memory with") as caught:
        trainer, result = trained(tmp_path / "cramped", model)
    other, _ = trained(tmp_path / "roomy", roomy, validate=ValidateRecipe(batch_size=2))
    assert [batch for training, batch in model.seen if training] == [8] * 4
    assert model.validation_batches() == [8, 4, *[2] * 10]
    assert len(caught) == 2 and trainer.state.batch_size == 8 and result.out_of_memory == 2
    lines, wanted = metrics_lines(tmp_path / "cramped"), metrics_lines(tmp_path / "roomy")
    assert [line["validation_batch_size"] for line in lines] == [2, 2] and [line["out_of_memory"] for line in lines] == [2, 0]
    assert [without(line, "out_of_memory") for line in lines] == [without(line, "out_of_memory") for line in wanted]
    assert torch.equal(model.head.weight, roomy.head.weight)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = tiny_trainer(tmp_path / "cramped", Small(room=2), batch_size=8, epochs=2)
        again._resume()
    assert again.validator.batch_size(8) == 2 and other.validator.largest is None


def test_a_validation_that_failed_half_way_begins_anew(tmp_path: Path) -> None:
    model = Small(fail_at=1)
    with pytest.warns(UserWarning, match="out of memory with 4 windows"):
        _, result = trained(tmp_path / "cramped", model, validate=ValidateRecipe(batch_size=4))
    assert model.validation_batches()[:7] == [4, 4, 2, 2, 2, 2, 2]
    assert result.validation.windows == 10
    assert result.validation == trained(tmp_path / "roomy", Small(), validate=ValidateRecipe(batch_size=2))[1].validation


def test_a_fixed_validation_batch_is_warned_of_once_training_takes_fewer(tmp_path: Path) -> None:
    """Validation never runs a larger batch than training without saying so."""

    class Cramped(Small):
        def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
            if self.training and len(history) > 2:
                raise torch.OutOfMemoryError(WORDS)
            return super().forward(history, future, static)

    with pytest.warns(UserWarning) as caught:
        trained(tmp_path / "fixed", Cramped(), validate=ValidateRecipe(batch_size=4))
    larger = "validate.batch_size 4 is larger than the 2 windows of a forward pass in training"
    assert [str(warning.message).startswith(larger) for warning in caught] == [False, False, True]
    model = Cramped()
    with pytest.warns(UserWarning, match="out of memory"):
        trained(tmp_path / "default", model)
    assert max(model.validation_batches()) == 2


@pytest.mark.parametrize("real", [False, True], ids=["200 batches", "the real network"])
def test_validation_is_flat(real: bool) -> None:
    """Live bytes after batch 3 and after the last batch are equal, and none are left."""
    model = small_model(static=False, hidden=8, lstm_layers=1, knots=4) if real else TinyModel()
    windows = RealWindows(model.inputs, 20) if real else TinyWindows(200)
    live: list[int] = []
    with ByteCounter() as counter:
        validate(model, windows, 1, Precision("fp32", CPU), on_batch=lambda windows: live.append(counter.live_bytes))
        left = counter.live_bytes
    assert len(live) == len(windows)
    assert live[2] == live[-1] == max(live[2:])
    assert left == 0


def test_a_checkpoint_while_the_state_is_away_is_whole(tmp_path: Path) -> None:
    """The best model is saved by the same call: what is read back is what was there."""
    made, _ = validator(Small(), offload=True)
    before = copy.deepcopy(made.optimizer.state_dict())
    with offloaded(made.optimizer):
        save_checkpoint(tmp_path / "away.pt", {"model": made.model.state_dict(), "optimizer": made.optimizer.state_dict()})
    saved = load_checkpoint(tmp_path / "away.pt")
    assert all(torch.equal(value, saved["model"][name]) for name, value in made.model.state_dict().items())
    for index, state in before["state"].items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(value, saved["optimizer"]["state"][index][name]) for name, value in state.items())


class _Stuck(Tensor):
    """Leaves its device, but finds no room there afterwards."""

    def to(self, *args: Any, **options: Any) -> Any:
        if options.get("copy"):
            return self
        raise torch.OutOfMemoryError(WORDS)


def test_state_that_finds_no_room_on_its_return_is_an_error_and_not_a_smaller_batch() -> None:
    model = Small()
    made, announced = validator(model, offload=True)
    state = _first_state(made)
    state["exp_avg"] = state["exp_avg"].as_subclass(_Stuck)
    with pytest.raises(OutOfMemoryError, match=r"the optimizer's state does not fit back .*Tried to allocate"):
        made(4, BAR)
    assert model.validation_batches() == [4, 4, 2] and announced == []
    with pytest.raises(RuntimeError, match="off its device"):
        made.optimizer.step()
