"""8-bit moments: the numbers they stand for, what they come to beside 32 bits, and their bytes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchao.optim.quant_utils import create_dynamic_map

from tftq.memory.components import state_tensors, storage_bytes
from tftq.memory.counter import ByteCounter
from tftq.recipe.schema import OptimizerRecipe
from tftq.train import adamw8bit
from tftq.train.adamw8bit import AdamW8bit, dynamic_values
from tftq.train.checkpoint import load_checkpoint, save_checkpoint
from tftq.train.optimizer import build_optimizer


@pytest.mark.parametrize("signed", [True, False])
def test_the_numbers_are_those_of_an_independent_implementation(signed: bool) -> None:
    assert dynamic_values(signed=signed) == pytest.approx(create_dynamic_map(signed=signed), rel=1e-5)


@pytest.mark.parametrize("name", list(adamw8bit.MOMENTS))
def test_a_number_gets_the_nearest_code_or_one_beside_it_that_is_hardly_farther(name: str) -> None:
    values = torch.tensor(adamw8bit.MOMENTS[name])
    table = adamw8bit._Table(adamw8bit.MOMENTS[name], torch.device("cpu"))
    assert torch.equal(table.encode(values), torch.arange(256, dtype=torch.uint8))
    low = -1.0 if name == "exp_avg" else 0.0
    numbers = torch.cat([torch.linspace(low, 1, 20_001), torch.logspace(-9, 0, 20_001)])
    distance = (table.decode(table.encode(numbers)) - numbers).abs()
    nearest = (values[:, None] - numbers).abs().amin(0)
    if name == "exp_avg_sq":
        nearest = nearest.maximum(values[1] - numbers)  # what is not zero is not taken for it
    assert bool((distance <= nearest + numbers.abs() * 2.0**-9).all())  # ten bits of the fraction tell it


class Regression(nn.Module):
    """A network, one batch of noise to fit, and an optimizer of its parameters."""

    def __init__(self, name: str, **options: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
        self.x, self.y = torch.randn(32, 64), torch.randn(32, 64)
        self.optimizer = build_optimizer(self.layers, OptimizerRecipe(name=name, lr=3e-3, **options))  # type: ignore[arg-type]

    def update(self) -> float:
        loss = (self.layers(self.x) - self.y).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.layers.parameters()]


def test_it_trains_as_32_bits_do() -> None:
    wide, narrow = Regression("adamw"), Regression("adamw8bit")
    losses = [(wide.update(), narrow.update()) for _ in range(40)]
    assert losses[0][0] == losses[0][1] and losses[-1][0] < 0.5 * losses[0][0]
    assert losses[-1][1] == pytest.approx(losses[-1][0], rel=0.02)


def test_parameters_too_small_for_codes_step_as_adamw_does() -> None:
    parameter = torch.linspace(-1, 1, 1000)
    ours, theirs = nn.Parameter(parameter.clone()), nn.Parameter(parameter.clone())
    optimizers = AdamW8bit([ours], lr=1e-2), torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.0)
    for step in range(5):
        for one, optimizer in zip((ours, theirs), optimizers, strict=True):
            one.grad = torch.sin(parameter * (step + 1))
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_the_first_step_is_known_by_hand() -> None:
    """Bias correction makes it lr times the gradient's sign, beside the decay of the weight itself; eps is too small to see."""
    weight = nn.Parameter(torch.full((64, 64), 2.0))
    weight.grad = torch.linspace(-1, 1, 4096).view(64, 64)
    AdamW8bit([{"params": [weight], "weight_decay": 0.1}], lr=0.5).step()
    expected = 2 * (1 - 0.5 * 0.1) - 0.5 * torch.linspace(-1, 1, 4096).view(64, 64).sign()
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-3)


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sliced = Regression("adamw8bit", weight_decay=0.1), Regression("adamw8bit", weight_decay=0.1)
    for _ in range(3):
        whole.update()
    monkeypatch.setattr(adamw8bit, "SLICE", 1024)
    for _ in range(3):
        sliced.update()
    for one, other in zip(whole.weights(), sliced.weights(), strict=True):
        assert torch.equal(one, other)


def test_a_second_moment_far_below_its_block_does_not_vanish() -> None:
    """One number of a block with gradients of 1, the others of 1e-4, and none for those every second update."""
    weight = nn.Parameter(torch.zeros(16, 256))
    optimizer = AdamW8bit([weight], lr=1e-3)
    for update in range(60):
        before = weight.detach().clone()
        weight.grad = torch.full((16, 256), 1e-4 if update % 2 == 0 else 0.0)
        weight.grad[:, 0] = 1.0
        optimizer.step()
        assert float((weight.detach() - before).abs().max()) < 2e-3, update  # two learning rates


def test_a_gradient_of_zeros_moves_nothing() -> None:
    weight = nn.Parameter(torch.ones(64, 64))
    optimizer = AdamW8bit([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.zeros(64, 64)
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(64, 64))


def test_bytes_of_the_state_and_of_a_step() -> None:
    parameter = nn.Parameter(torch.zeros(2**20))
    optimizer = AdamW8bit([parameter], lr=1e-3)
    with ByteCounter() as counter:
        parameter.grad = torch.ones(2**20)
        optimizer.step()
        counter.reset_peak()
        before = counter.live_bytes
        optimizer.step()
        step_bytes = counter.peak_bytes - before
    assert storage_bytes(state_tensors(optimizer)) == 2 * (2**20 + 4 * 2**20 // 256)
    assert step_bytes < 6 * 4 * 2**18  # a handful of slices, whatever the parameter's size


def test_it_can_be_planned_on_fake_tensors() -> None:
    def state_bytes() -> int:
        model = Regression("adamw8bit")
        model.layers(model.x).sum().backward()
        model.optimizer.step()
        return storage_bytes(state_tensors(model.optimizer))

    with FakeTensorMode():
        planned = state_bytes()
    assert planned == state_bytes()


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    through, first, second = (Regression("adamw8bit") for _ in range(3))
    for _ in range(6):
        through.update()
    for _ in range(3):
        first.update()
    path = tmp_path / "half.pt"
    save_checkpoint(path, {"model": first.layers.state_dict(), "optimizer": first.optimizer.state_dict()})
    saved = load_checkpoint(path)
    second.layers.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    codes = [value for state in second.optimizer.state.values() for name, value in state.items() if name in adamw8bit.MOMENTS]
    assert [value.dtype for value in codes].count(torch.uint8) == 4  # two weights, two moments
    for _ in range(3):
        second.update()
    for one, other in zip(through.weights(), second.weights(), strict=True):
        assert torch.equal(one, other)
