"""The schedule against its closed form, and what it writes into an optimizer."""

import math

import pytest
import torch
from torch import nn

from tftq.recipe.schema import ScheduleRecipe
from tftq.train.schedule import Schedule


def test_by_hand() -> None:
    schedule = Schedule(total=10, warmup=2, cooldown=4, floor=0.2)
    half = 0.2 + 0.8 * (1 - math.cos(math.pi / 2)) / 2  # 0.6, half way down
    quarter = 0.4 * math.cos(math.pi / 4)
    expected = [0.2, 0.6, 1, 1, 1, 1, 0.6 + quarter, half, 0.6 - quarter, 0.2]
    assert [schedule.factor(update) for update in range(10)] == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup", "cooldown"), [(1, 0.0, 0.0), (1, 0.5, 0.5), (3, 0.5, 0.5), (7, 0.3, 0.7), (1000, 0.05, 0.5)])
def test_fractions_become_whole_updates_that_fit(total: int, warmup: float, cooldown: float) -> None:
    schedule = Schedule.of(ScheduleRecipe(warmup=warmup, cooldown=cooldown, floor=0.01), total)
    assert abs(schedule.warmup - warmup * total) <= 0.5
    assert abs(schedule.cooldown - cooldown * total) <= 1
    factors = [schedule.factor(update) for update in range(total)]
    assert all(0.01 <= factor <= 1 for factor in factors)
    assert factors[: schedule.warmup] == sorted(factors[: schedule.warmup])
    assert factors[total - schedule.cooldown :] == sorted(factors[total - schedule.cooldown :], reverse=True)
    assert not schedule.cooldown or factors[-1] == 0.01


def test_without_warmup_and_cooldown_the_rate_is_constant() -> None:
    assert {Schedule(5, 0, 0, 0.01).factor(update) for update in range(5)} == {1.0}


def test_an_update_beyond_the_end_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="update 5 of 5"):
        Schedule(5, 0, 0, 0.0).factor(5)


def test_apply_keeps_the_ratio_of_groups_and_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(1e-2)
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "lr": 1e-3, "base_lr": 1e-3},
        {"params": [nn.Parameter(torch.zeros(1))], "lr": rate, "base_lr": 1e-2},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule = Schedule(total=10, warmup=5, cooldown=0, floor=0.0)
    for update in (1, 3, 7):
        schedule.apply(optimizer, update)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * min(update / 5, 1))
        assert optimizer.param_groups[1]["lr"] is rate
        assert rate.item() == pytest.approx(1e-2 * min(update / 5, 1))
