"""The phases of QAT, and what a recipe makes of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.quant.small import calibrated, small_table
from tftq.errors import QuantizationError
from tftq.quant.quantizers import quantizers
from tftq.quant.schedule import QatSchedule, Switches
from tftq.recipe.schema import BarsRecipe, QatRecipe, QuantRecipe, Recipe, TrainRecipe
from tftq.train.sampler import Sampler
from tftq.train.stages import qat_schedule, stage_settings

FLOAT, LEARNING, BOTH, FROZEN = Switches(False, False), Switches(True, False), Switches(True, True), Switches(False, True)


def test_every_phase_by_hand() -> None:
    schedule = QatSchedule(observe=2, fake_quant=4, freeze=7, total=9)
    phases = [schedule.switches(update) for update in range(9)]
    assert phases == [FLOAT, FLOAT, LEARNING, LEARNING, BOTH, BOTH, BOTH, FROZEN, FROZEN]


@pytest.mark.parametrize(
    ("schedule", "first", "last"),
    [
        (QatSchedule(0, 0, 0, 1), FROZEN, FROZEN),  # the ranges of calibration, from the first update to the last
        (QatSchedule(0, 0, 2, 3), BOTH, FROZEN),
        (QatSchedule(0, 2, 2, 3), LEARNING, FROZEN),
        (QatSchedule(2, 2, 2, 3), FLOAT, FROZEN),
    ],
)
def test_phases_may_be_empty(schedule: QatSchedule, first: Switches, last: Switches) -> None:
    assert (schedule.switches(0), schedule.switches(schedule.total - 1)) == (first, last)


@pytest.mark.parametrize("order", [(-1, 0, 0, 5), (2, 1, 3, 5), (0, 3, 2, 5), (0, 0, 5, 5), (0, 0, 0, 0)])
def test_phases_out_of_order_are_an_error(order: tuple[int, int, int, int]) -> None:
    text = rf"observe {order[0]}, fake_quant {order[1]}, freeze {order[2]} of {order[3]} updates; allowed is 0 <= observe"
    with pytest.raises(QuantizationError, match=text):
        QatSchedule(*order)


def test_a_phase_is_set_on_every_quantizer() -> None:
    model = calibrated(small_table())
    schedule = QatSchedule(1, 2, 3, 4)
    for update, phase in enumerate([FLOAT, LEARNING, BOTH, FROZEN]):
        schedule.apply(model, update)
        found = {Switches(quantizer.observing, quantizer.enabled) for _, quantizer in quantizers(model)}
        assert found == {phase}


def recipe(qat: dict[str, Any], **train: Any) -> Recipe:
    return Recipe(
        name="qat",
        data=BarsRecipe(kind="bars", path=Path("bars.parquet")),
        train=TrainRecipe(**{"batch_size": 8, **train}),
        quant=QuantRecipe(method="qat", qat=QatRecipe(**qat)),
    )


@pytest.mark.parametrize(
    ("qat", "train", "expected"),
    [
        ({}, {}, (0, 1, 13, 26)),  # 2 epochs of 13 updates, the last of them ragged
        ({"epochs": 4}, {"accumulate": 3}, (0, 1, 10, 20)),  # 5 updates of up to 24 windows
        ({"observe": 3}, {}, (3, 3, 13, 26)),  # rounding waits for the observers
        ({"fake_quant": 20}, {}, (0, 20, 20, 26)),  # freezing waits for rounding
        ({"observe": 1, "fake_quant": 2, "freeze": 25}, {}, (1, 2, 25, 26)),
        ({"epochs": 1}, {"batch_size": 100}, (0, 0, 0, 1)),
    ],
)
def test_what_a_recipe_leaves_out_is_a_share_of_all_updates(
    qat: dict[str, Any], train: dict[str, Any], expected: tuple[int, int, int, int]
) -> None:
    made = recipe(qat, **train)
    assert qat_schedule(made, windows=100) == QatSchedule(*expected)
    sampler = Sampler(100, made.train.batch_size * made.train.accumulate, seed=0)
    assert expected[-1] == made.quant.qat.epochs * sampler.groups_per_epoch  # as many updates as the trainer will make


@pytest.mark.parametrize("qat", [{"freeze": 26}, {"fake_quant": 26}, {"observe": 26}])
def test_more_phases_than_updates_are_an_error(qat: dict[str, int]) -> None:
    with pytest.raises(QuantizationError, match=r"26 of 26 updates; .* raise quant.qat.epochs"):
        qat_schedule(recipe(qat), windows=100)


def test_qat_trains_as_training_does_but_for_its_own_settings() -> None:
    own = {"epochs": 3, "lr": 2e-5, "schedule": {"warmup": 0.2, "cooldown": 0.3, "floor": 0.1}}
    optimizer = {"lr": 1e-2, "weight_decay": 0.5, "groups": {"*slope": 1e-3}}
    made = recipe(own, epochs=9, accumulate=2, clip_norm=None, patience=2, optimizer=optimizer, precision="bf16")
    settings = stage_settings(made, "qat")
    assert (settings.epochs, settings.optimizer.lr, settings.schedule) == (3, 2e-5, made.quant.qat.schedule)
    assert (settings.patience, settings.optimizer.groups) == (None, {})
    assert (settings.batch_size, settings.accumulate, settings.clip_norm, settings.precision) == (8, 2, None, "bf16")
    assert settings.optimizer.weight_decay == 0.5
    assert (made.train.epochs, made.train.optimizer.lr) == (9, 1e-2)  # the recipe itself is as it was
