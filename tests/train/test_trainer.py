"""The loop: what it applies, counts, writes and refuses."""

import gc
import math
import warnings
from pathlib import Path

import pytest
import torch

from tests.train.stand_ins import ListTimeline, TinyModel, TinyWindows, metrics_lines, tiny_trainer
from tftq.errors import NonFiniteError
from tftq.evaluate.loss import quantile_loss
from tftq.recipe.schema import OptimizerRecipe, ScheduleRecipe, ValidateRecipe
from tftq.train.trainer import Trainer


def trace_rates(trainer: Trainer) -> list[list[float]]:
    """The learning rate of every group at every step that the optimizer takes."""
    trace: list[list[float]] = []
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: trace.append([group["lr"] for group in optimizer.param_groups]))
    return trace


def closed_form(update: int) -> float:
    """Of 24 updates: 6 up from 0.1, 12 at 1, 6 down to 0.1."""
    if update < 6:
        return 0.1 + 0.9 * update / 6
    if update < 18:
        return 1.0
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (update - 17) / 6)) / 2


def test_the_rate_of_every_group_follows_the_closed_form_at_every_update(tmp_path: Path) -> None:
    """Read from the optimizer at each update, through warm-up, stable part and cool-down."""
    trainer = tiny_trainer(
        tmp_path,
        optimizer=OptimizerRecipe(lr=1e-3, groups={"head.*": 1e-2}),
        schedule=ScheduleRecipe(warmup=0.25, cooldown=0.25, floor=0.1),
    )
    base = {"weights": 1e-3, "others": 1e-3, "head.* weights": 1e-2, "head.* others": 1e-2}
    rates = [base[group["name"]] for group in trainer.optimizer.param_groups]
    assert sorted(rates) == [1e-3, 1e-3, 1e-2, 1e-2]
    trace = trace_rates(trainer)
    assert trainer.fit().updates == 24
    assert len(trace) == 24
    for update, found in enumerate(trace):
        assert found == pytest.approx([rate * closed_form(update) for rate in rates], rel=1e-12), update
    assert metrics_lines(tmp_path)[0]["lr"] == pytest.approx({name: rate * closed_form(7) for name, rate in base.items()})


class Gradients:
    """The gradients that reach the first step, before the loop clears them."""

    def __init__(self, trainer: Trainer) -> None:
        self.steps: list[list[torch.Tensor]] = []
        trainer.optimizer.register_step_pre_hook(
            lambda *_: self.steps.append([parameter.grad.clone() for parameter in trainer.parameters])  # type: ignore[union-attr]
        )


def test_accumulated_gradients_are_those_of_one_big_batch_the_last_partial_group_included(tmp_path: Path) -> None:
    """39 windows are 10 batches of 4, the last of 3; accumulated by 4 they make groups of 16, 16 and 7 windows."""
    found = []
    for name, batch, accumulate in (("small", 4, 4), ("big", 16, 1)):
        trainer = tiny_trainer(tmp_path / name, windows=39, batch_size=batch, accumulate=accumulate, epochs=1, clip_norm=None)
        gradients = Gradients(trainer)
        trainer.fit()
        sizes = [batch for training, batch in trainer.model.seen if training]
        assert sizes == ([4, 4, 4, 4, 4, 4, 4, 4, 4, 3] if name == "small" else [16, 16, 7])
        found.append(gradients.steps)
    small, big = found
    assert len(small) == len(big) == 3
    for step, (ours, theirs) in enumerate(zip(small, big, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=lambda text, step=step: f"step {step}: {text}")
    assert metrics_lines(tmp_path / "small")[0]["train_loss"] == pytest.approx(metrics_lines(tmp_path / "big")[0]["train_loss"])


def test_smaller_forward_passes_change_no_gradient(tmp_path: Path) -> None:
    """39 windows in groups of 16, 16 and 7, forwarded 3 at a time."""
    found = []
    for name, forward in (("whole", None), ("parts", 3)):
        trainer = tiny_trainer(tmp_path / name, windows=39, batch_size=8, accumulate=2, epochs=1, clip_norm=None, forward=forward)
        gradients = Gradients(trainer)
        trainer.fit()
        found.append(gradients.steps)
    sizes = [batch for training, batch in trainer.model.seen if training]
    assert sizes == [3, 3, 3, 3, 3, 1, 3, 3, 3, 3, 3, 1, 3, 3, 1]
    assert trainer.model.validation_batches() == [3, 3, 3, 1], "validation takes no more than training"
    assert trainer.state.batch_size == metrics_lines(tmp_path / "parts")[0]["batch_size"] == 3
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_logged_loss_is_the_mean_over_windows(tmp_path: Path) -> None:
    windows, model = TinyWindows(13), TinyModel()
    trainer = tiny_trainer(tmp_path, model, train=windows, epochs=1, batch_size=4, optimizer=OptimizerRecipe(lr=1e-12))
    trainer.fit()
    batch = windows.batch(range(13))
    expected = quantile_loss(model(*batch.inputs), batch.target, model.quantiles, model.target_scale).item()
    assert metrics_lines(tmp_path)[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_gradients_are_clipped_to_the_norm_and_logged_as_they_were(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, epochs=1, clip_norm=1e-3)
    gradients = Gradients(trainer)
    trainer.fit()
    norms = [math.sqrt(sum(float(gradient.square().sum()) for gradient in step)) for step in gradients.steps]
    assert norms == pytest.approx([1e-3] * 8, rel=1e-3)
    assert metrics_lines(tmp_path)[0]["grad_norm"] > 0.01


def test_an_infinite_fp16_gradient_leaves_rate_counter_and_weights(tmp_path: Path) -> None:
    """A skipped update does not count: the schedule moves only with applied ones."""
    model = TinyModel()
    asked: list[int] = []
    trainer = tiny_trainer(tmp_path, model, precision="fp16", epochs=1, schedule=ScheduleRecipe(warmup=0.5), on_update=asked.append)
    backward = iter([math.inf])
    model.head.weight.register_hook(lambda gradient: gradient * next(backward, 1.0))
    trace = []

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        weights = [parameter.detach().clone() for parameter in trainer.parameters]
        trace.append((trainer.state.update, [group["lr"] for group in optimizer.param_groups], weights, trainer.scaler.get_scale()))

    trainer.optimizer.register_step_pre_hook(look)
    result = trainer.fit()
    first, second, third = trace[0], trace[1], trace[2]
    assert (first[0], second[0], third[0]) == (0, 0, 1)
    assert first[1] == second[1] != third[1]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first[2], second[2], strict=True))
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(second[2], third[2], strict=True))
    assert second[3] == first[3] / 2
    assert asked == [0, 0, 1, 2, 3, 4, 5, 6]
    assert (result.updates, result.skipped) == (7, 1)
    assert metrics_lines(tmp_path)[0]["skipped"] == 1


def test_fp16_gradients_that_never_become_finite_stop_the_run(tmp_path: Path) -> None:
    model = TinyModel()
    model.head.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteError, match=r"epoch 3, update 0: FP16 gradients are not finite even unscaled; use train\.precision bf16"):
        tiny_trainer(tmp_path, model, precision="fp16").fit()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_training_lowers_the_loss_in_every_precision(tmp_path: Path, precision: str) -> None:
    result = tiny_trainer(tmp_path, windows=64, precision=precision, epochs=8, batch_size=8, optimizer=OptimizerRecipe(lr=2e-2)).fit()
    lines = metrics_lines(tmp_path)
    assert lines[-1]["train_loss"] < 0.7 * lines[0]["train_loss"]
    assert result.validation.loss == min(line["val"]["loss"] for line in lines) < 0.8 * lines[0]["val"]["loss"]


@pytest.mark.parametrize("constant", [0.0, 1e5])
def test_a_constant_target_stays_finite(tmp_path: Path, constant: float) -> None:
    windows = TinyWindows(16, target=constant)
    result = tiny_trainer(tmp_path, train=windows, validation=windows).fit()
    assert math.isfinite(result.validation.loss) and all(math.isfinite(risk) for risk in result.validation.q_risk.values())


def test_nothing_that_is_kept_hangs_on_a_graph(tmp_path: Path) -> None:
    """No tensor with a graph is alive after training."""
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)}
    trainer = tiny_trainer(tmp_path)
    result = trainer.fit()
    gc.collect()
    kept = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and id(thing) not in before]
    assert any(thing is trainer.parameters[0] for thing in kept), "the search must see tensors at all"
    assert [thing.shape for thing in kept if thing.grad_fn is not None] == []
    assert all(parameter.grad is None for parameter in trainer.parameters)
    assert result.updates == 24


def test_the_phases_of_every_epoch_in_their_order(tmp_path: Path) -> None:
    timeline = ListTimeline()
    tiny_trainer(tmp_path, timeline=timeline, epochs=2, memory_every=3).fit()
    batches = ["TRAIN_BATCH_0", "TRAIN_BATCH_3", "TRAIN_BATCH_6"]
    around = ["BEFORE_VALIDATION", "VALIDATION_START", "VALIDATION_END", "AFTER_VALIDATION", "AFTER_CHECKPOINT", "EPOCH_END"]
    phases = ["EPOCH_START", *batches, "AFTER_TRAINING", *around]
    assert timeline.records == [(phase, epoch) for epoch in (1, 2) for phase in phases]


def test_batches_are_numbered_through_accumulated_groups(tmp_path: Path) -> None:
    timeline = ListTimeline()
    tiny_trainer(tmp_path, timeline=timeline, epochs=1, accumulate=3, memory_every=2).fit()
    assert [phase for phase, _ in timeline.records if "BATCH" in phase] == [f"TRAIN_BATCH_{number}" for number in (0, 2, 4, 6)]


@pytest.mark.parametrize("forward", [8, 4, 3, 1])
def test_batches_are_numbered_as_asked_for_however_they_are_forwarded(tmp_path: Path, forward: int) -> None:
    timeline = ListTimeline()
    tiny_trainer(tmp_path, windows=32, timeline=timeline, epochs=1, batch_size=8, accumulate=2, memory_every=1, forward=forward).fit()
    assert [phase for phase, _ in timeline.records if "BATCH" in phase] == [f"TRAIN_BATCH_{number}" for number in range(4)]


def test_every_few_epochs_and_the_last_are_validated(tmp_path: Path) -> None:
    timeline = ListTimeline()
    tiny_trainer(tmp_path, timeline=timeline, epochs=5, validate=ValidateRecipe(every=2)).fit()
    assert [line["val"] is not None for line in metrics_lines(tmp_path)] == [False, True, False, True, True]
    assert [epoch for phase, epoch in timeline.records if phase == "VALIDATION_START"] == [2, 4, 5]


class Worsening(TinyModel):
    """Forecasts worse in each epoch after the second, by a parameter-free drift in eval mode."""

    validations = 0

    def eval(self) -> "Worsening":
        self.validations += 1
        return super().eval()

    def forward(self, history: torch.Tensor, future: torch.Tensor, static: torch.Tensor | None = None) -> torch.Tensor:
        forecast = super().forward(history, future, static)
        return forecast if self.training else forecast + 100 * abs(self.validations - 2)


def test_early_stopping_loads_the_best_weights_back(tmp_path: Path) -> None:
    model = Worsening()
    trainer = tiny_trainer(tmp_path, model, epochs=9, patience=3)
    result = trainer.fit()
    lines = metrics_lines(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert result.best_epoch == 2
    assert result.validation.loss == lines[1]["val"]["loss"] == min(line["val"]["loss"] for line in lines)
    best, last = torch.load(trainer.checkpoints.best)["model"], torch.load(trainer.checkpoints.last)["model"]
    assert torch.equal(model.head.weight, best["head.weight"])
    assert not torch.equal(model.head.weight, last["head.weight"])


def test_epochs_without_validation_do_not_stop_the_run(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, Worsening(), epochs=6, patience=1, validate=ValidateRecipe(every=3)).fit()
    assert len(metrics_lines(tmp_path)) == 6


def test_the_best_model_comes_from_best_from_on_and_patience_starts_there(tmp_path: Path) -> None:
    """Update 8 is the first of the second epoch: what the first one's validation saw was not quantized yet."""
    model = Worsening()
    model.validations = 1  # so that the first validation is the best of all
    result = tiny_trainer(tmp_path, model, epochs=9, patience=1, best_from=8).fit()
    assert result.best_epoch == 2
    assert len(metrics_lines(tmp_path)) == 3
    model = Worsening()
    model.validations = 1
    assert tiny_trainer(tmp_path / "never", model, best_from=24).fit().best_epoch == 3


def test_a_loss_that_is_not_finite_stops_at_its_update_and_names_the_layer(tmp_path: Path) -> None:
    model = TinyModel()

    def poison(update: int) -> None:
        if update == 10:
            with torch.no_grad():
                model.norm.weight[3] = math.nan

    trainer = tiny_trainer(tmp_path, model, on_update=poison)
    with pytest.raises(
        NonFiniteError, match=r"epoch 2, update 10: the training loss is nan: .* norm \(LayerNorm\); .* weight are not finite"
    ):
        trainer.fit()
    assert trainer.state.update == 10


def test_an_infinite_target_is_named_with_its_windows(tmp_path: Path) -> None:
    windows = TinyWindows(2)
    windows.target[:, 1] = math.inf
    with pytest.raises(
        NonFiniteError, match=r"update 0: the training loss is inf: the batch's target is not finite in its windows \[0, 1\]"
    ):
        tiny_trainer(tmp_path, train=windows).fit()


def test_an_infinite_gradient_of_a_finite_loss_names_its_parameter(tmp_path: Path) -> None:
    model = TinyModel()
    model.body.bias.register_hook(lambda gradient: gradient * math.inf)
    before = model.head.weight.detach().clone()
    with pytest.raises(NonFiniteError, match=r"update 0: the loss is finite, the gradients of body\.bias are not"):
        tiny_trainer(tmp_path, model).fit()
    assert torch.equal(model.head.weight, before)


def test_a_model_left_in_eval_mode_is_a_mistake_of_ours(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"call model\.train\(\)"):
        tiny_trainer(tmp_path, TinyModel().eval()).fit()


def test_a_submodule_frozen_in_eval_stays_so_through_training(tmp_path: Path) -> None:
    model = TinyModel(dropout=0.5)
    model.dropout.eval()
    modes = []
    model.dropout.register_forward_hook(lambda module, *_: modes.append(module.training))
    tiny_trainer(tmp_path, model).fit()
    assert model.training and not model.dropout.training
    assert len(modes) == 3 * (8 + 5) and not any(modes)


def test_validation_never_forwards_more_than_training(tmp_path: Path) -> None:
    model = TinyModel()
    tiny_trainer(tmp_path, model, batch_size=4).fit()
    assert model.validation_batches() == [4, 4, 2] * 3


def test_a_larger_validation_batch_is_used_with_a_warning(tmp_path: Path) -> None:
    model = TinyModel()
    with pytest.warns(UserWarning, match=r"validate\.batch_size 10 is larger than the 2 windows of a forward"):
        trainer = tiny_trainer(tmp_path, model, validate=ValidateRecipe(batch_size=10))
    trainer.fit()
    assert model.validation_batches() == [10] * 3


def test_offloading_on_the_cpu_is_warned_about_and_changes_nothing(tmp_path: Path) -> None:
    models = [TinyModel(), TinyModel()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_trainer(tmp_path / "auto", models[0]).fit()
    with pytest.warns(UserWarning, match=r"validate\.offload_optimizer: always only costs time on the CPU"):
        trainer = tiny_trainer(tmp_path / "always", models[1], validate=ValidateRecipe(offload_optimizer="always"))
    trainer.fit()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_a_frozen_parameter_does_not_move(tmp_path: Path) -> None:
    model = TinyModel()
    model.body.weight.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    tiny_trainer(tmp_path, model).fit()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == set(before) - {"body.weight"}


def test_the_start_is_kept_where_no_epoch_improves_on_it(tmp_path: Path) -> None:
    """A learning rate that ruins the model: what is left are the weights it came with, as epoch 0."""
    model = TinyModel(dropout=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ruin = {"optimizer": {"lr": 50.0}, "clip_norm": None}
    result = tiny_trainer(tmp_path / "kept", model, keep_start=True, **ruin).fit()
    assert result.best_epoch == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert tiny_trainer(tmp_path / "not", TinyModel(dropout=0.5), **ruin).fit().best_epoch > 0
