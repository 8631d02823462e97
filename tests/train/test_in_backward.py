"""Gradients applied while the backward pass runs: the same update, and no two of them at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.train.stand_ins import TinyModel, metrics_lines, tiny_trainer
from tftq.errors import NonFiniteError, OutOfMemoryError
from tftq.memory.counter import ByteCounter
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.in_backward import AppliedInBackward
from tftq.train.optimizer import build_optimizer


def deep_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh())))


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_the_same_weights_as_one_step_after_the_backward_pass(name: str) -> None:
    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
    recipe = OptimizerRecipe(name=name, lr=1e-2)  # type: ignore[arg-type]
    after, during = deep_model(), deep_model()
    optimizer, applied = build_optimizer(after, recipe), AppliedInBackward(build_optimizer(during, recipe))
    for _ in range(3):
        after(x).square().mean().backward()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in after.parameters() if parameter.grad is not None])
        optimizer.step()
        optimizer.zero_grad()

        during(x).square().mean().backward()
        assert all(parameter.grad is None for parameter in during.parameters())
        torch.testing.assert_close(applied.take_norm(torch.device("cpu")), norm)
    for one, other in zip(after.parameters(), during.parameters(), strict=True):
        assert torch.equal(one, other)


def test_no_two_weights_gradients_live_at_once() -> None:
    def peak(in_backward: bool) -> int:
        with ByteCounter() as counter:
            model = deep_model()
            optimizer = build_optimizer(model, OptimizerRecipe())
            if in_backward:
                AppliedInBackward(optimizer)
            for _ in range(2):
                before = counter.live_bytes
                counter.reset_peak()
                model(torch.ones(1, 128)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return counter.peak_bytes - before

    weight = 4 * 128 * 128
    assert peak(False) > 6 * weight
    assert peak(True) < 1.2 * weight


def test_the_norm_of_nothing_is_zero() -> None:
    assert AppliedInBackward(build_optimizer(deep_model(), OptimizerRecipe())).take_norm(torch.device("cpu")) == 0


def test_a_training_comes_to_the_same(tmp_path: Path) -> None:
    def trained(folder: Path, in_backward: bool) -> tuple[TinyModel, list[float]]:
        model = TinyModel()
        tiny_trainer(folder, model, clip_norm=None, optimizer=OptimizerRecipe(lr=1e-2, in_backward=in_backward)).fit()
        return model, [line["grad_norm"] for line in metrics_lines(folder)]

    (after, norms), (during, norms_during) = trained(tmp_path / "after", False), trained(tmp_path / "during", True)
    for one, other in zip(after.parameters(), during.parameters(), strict=True):
        assert torch.equal(one, other)
    assert norms_during == pytest.approx(norms, rel=1e-6)


def in_backward_trainer(folder: Path, model: nn.Module, hook: object) -> object:
    model.head.weight.register_hook(hook)  # type: ignore[union-attr, arg-type]
    return tiny_trainer(folder, model, clip_norm=None, optimizer=OptimizerRecipe(in_backward=True))


def test_what_was_applied_and_is_not_finite_is_named(tmp_path: Path) -> None:
    trainer = in_backward_trainer(tmp_path, TinyModel(), lambda gradient: gradient * torch.nan)
    with pytest.raises(NonFiniteError, match=r"update 0: the loss is finite, the gradients of head\.weight are not"):
        trainer.fit()  # type: ignore[attr-defined]


def test_a_loss_that_is_not_finite_is_not_applied(tmp_path: Path) -> None:
    model = TinyModel()
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    before = model.head.weight.clone()
    trainer = tiny_trainer(tmp_path, model, clip_norm=None, optimizer=OptimizerRecipe(in_backward=True))
    with pytest.raises(NonFiniteError, match=r"the training loss is nan.*norm"):
        trainer.fit()
    assert torch.equal(model.head.weight, before)


def test_an_attempt_that_ran_out_of_memory_is_not_repeated(tmp_path: Path) -> None:
    def fail(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    trainer = in_backward_trainer(tmp_path, TinyModel(), fail)
    with pytest.raises(OutOfMemoryError, match=r"update 0: out of memory.*in_backward.*lower train\.batch_size"):
        trainer.fit()  # type: ignore[attr-defined]
