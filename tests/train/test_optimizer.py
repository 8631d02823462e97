"""Every trainable parameter in one group, by identity."""

import pytest
import torch
from torch import nn

from tftq.errors import RecipeError
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.optimizer import build_optimizer


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
