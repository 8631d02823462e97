"""Every trainable parameter in one group, by identity."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tftq.errors import RecipeError
from tftq.memory.components import state_tensors, storage_bytes
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.checkpoint import load_checkpoint, save_checkpoint
from tftq.train.optimizer import build_optimizer
from tftq.train.schedule import Schedule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.LayerNorm([2, 4])  # a norm whose weight is no vector
        self.lstm = nn.LSTM(4, 2)
        self.last = nn.Linear(2, 1)
        self.first_bias_of_many = nn.Parameter(torch.zeros(2, 4))
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def groups_by_name(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in optimizer.param_groups}


def assert_each_once(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


def test_weights_decay_and_nothing_else_does() -> None:
    model = Net()
    optimizer = build_optimizer(model, OptimizerRecipe(lr=0.002, weight_decay=0.3))
    groups = groups_by_name(optimizer, model)
    assert groups["weights"] == {"first.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "last.weight"}
    assert_each_once(optimizer, model)
    decay = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decay == {"weights": 0.3, "others": 0.0}
    assert all(group["base_lr"] == group["lr"] == 0.002 for group in optimizer.param_groups)


def test_the_first_pattern_that_matches_gives_the_rate() -> None:
    model = Net()
    optimizer = build_optimizer(model, OptimizerRecipe(lr=1e-3, groups={"*.weight": 1e-2, "first*": 1e-4}))
    rates = {name: group["base_lr"] for group in optimizer.param_groups for name in [group["name"]]}
    assert rates == {"weights": 1e-3, "others": 1e-3, "*.weight weights": 1e-2, "*.weight others": 1e-2, "first* others": 1e-4}
    assert groups_by_name(optimizer, model)["*.weight weights"] == {"first.weight", "last.weight"}
    assert groups_by_name(optimizer, model)["first* others"] == {"first.bias", "first_bias_of_many"}
    assert_each_once(optimizer, model)


@pytest.mark.parametrize("groups", [{"decoder.*": 1e-2}, {"first.*": 1e-2, "first.weight": 1e-3}, {"frozen": 1e-2}])
def test_a_pattern_without_effect_is_refused(groups: dict[str, float]) -> None:
    idle = list(groups)[-1]
    with pytest.raises(RecipeError, match=rf"'{idle.replace('*', '[*]')}' gets no parameter.*first\.weight"):
        build_optimizer(Net(), OptimizerRecipe(groups=groups))


def test_a_shared_parameter_is_trained_once() -> None:
    model = Net()
    model.again = model.first
    assert_each_once(build_optimizer(model, OptimizerRecipe()), model)


def test_moments_in_8_bits_train_as_those_in_32(tmp_path: Path) -> None:
    def trained(name: str) -> tuple[float, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
        optimizer = build_optimizer(model, OptimizerRecipe(name=name, lr=3e-3))  # type: ignore[arg-type]
        x, y = torch.randn(32, 64), torch.randn(32, 64)
        for update in range(30):
            loss = (model(x) - y).square().mean()
            loss.backward()
            Schedule(30, 0, 0, 1.0).apply(optimizer, update)
            optimizer.step()
            optimizer.zero_grad()
        return loss.item(), optimizer

    (loss, optimizer), (loss_8bit, optimizer_8bit) = trained("adamw"), trained("adamw8bit")
    assert loss < 0.6 and loss_8bit == pytest.approx(loss, rel=0.02)
    weights, biases = 2 * 64 * 256, 64 + 256
    assert storage_bytes(state_tensors(optimizer)) == 2 * 4 * (weights + biases) + 4 * 4  # and a step counter each
    blocks, tables = weights // 256, 2 * 2 * 256  # a scale to a block; the codes' values
    assert storage_bytes(state_tensors(optimizer_8bit)) == 2 * (weights + 4 * blocks) + 2 * 4 * biases + 4 * tables + 4 * 4

    path = tmp_path / "optimizer.pt"
    save_checkpoint(path, {"optimizer": optimizer_8bit.state_dict()})
    assert [group["name"] for group in load_checkpoint(path)["optimizer"]["param_groups"]] == ["weights", "others"]
