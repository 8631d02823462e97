"""Quantization-aware training by the real trainer: what changes at which update, and what never does."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.quant.small import SmallWindows, calibrated, small_batch, small_table
from tests.train.stand_ins import ListTimeline
from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import validate
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.prepare import prepare
from tftq.quant.quantizers import quantizers
from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import OptimizerRecipe, TrainRecipe, ValidateRecipe
from tftq.train.context import TrainingData, Workplace
from tftq.train.optimizer import build_optimizer
from tftq.train.schedule import Schedule
from tftq.train.stages import float_settings
from tftq.train.trainer import Trainer

CPU = torch.device("cpu")


class Trace:
    """Trains a model, and keeps its weights before each update and the mean square of its forecasts during it."""

    def __init__(self, model: TemporalFusionTransformer, folder: Path, schedule: QatSchedule | None, *, windows: int = 32) -> None:
        self.weights: list[dict[int, Tensor]] = []
        self.forecasts: list[float] = []
        places = {id(parameter): position for position, parameter in enumerate(model.parameters())}
        data = SmallWindows(small_batch(model.inputs, windows, seed=7))

        def on_update(update: int) -> None:
            if schedule is not None:
                schedule.apply(model, update)
            self.weights.append({places[id(parameter)]: parameter.detach().clone() for parameter in model.parameters()})

        def keep_forecast(_: nn.Module, inputs: tuple[Tensor, ...], forecast: Tensor) -> None:
            if model.training:
                self.forecasts.append(forecast.detach().double().square().mean().item())

        model.train().register_forward_hook(keep_forecast)
        torch.manual_seed(11)
        trainer = Trainer(
            model,
            TrainingData(data, data),
            float_settings(TrainRecipe(epochs=2, batch_size=8, optimizer=OptimizerRecipe(lr=1e-2)), ValidateRecipe(), seed=3),
            Workplace(folder, CPU, ListTimeline()),
            on_update=on_update,
        )
        self.updates = trainer.fit().updates


def ordered(weights: dict[int, Tensor], names: list[str], reference: list[str]) -> list[Tensor]:
    """The weights of a model in the order of another's names."""
    by_name = dict(zip(names, (weights[position] for position in range(len(names))), strict=True))
    return [by_name[name] for name in reference]


@pytest.mark.parametrize("lstm", ["fp32", "int8"])
def test_until_fake_quant_the_training_is_that_of_the_float_table_bit_for_bit(lstm: str, tmp_path: Path) -> None:
    """With dropout on: the weights before update 5 and its predecessors' forecasts are equal, those of update 5 are not."""
    table = small_table()
    quantized = calibrated(table, lstm)  # type: ignore[arg-type]
    names = [name.replace(".lstm.", ".") for name, _ in quantized.named_parameters()]
    reference = [name for name, _ in table.named_parameters()]
    plain = Trace(table, tmp_path / "float", None)
    qat = Trace(quantized, tmp_path / "qat", QatSchedule(observe=0, fake_quant=5, freeze=7, total=8))

    assert plain.updates == qat.updates == 8
    assert qat.forecasts[:5] == plain.forecasts[:5]
    assert all(here != there for here, there in zip(qat.forecasts[5:], plain.forecasts[5:], strict=True))
    for update in range(8):
        here = ordered(qat.weights[update], names, reference)
        there = ordered(plain.weights[update], reference, reference)
        same = [torch.equal(one, other) for one, other in zip(here, there, strict=True)]
        assert all(same) if update <= 5 else not all(same), f"before update {update}"
    assert not torch.equal(plain.weights[5][0], plain.weights[0][0])


def test_validating_leaves_every_buffer_as_it_was() -> None:
    """On data ten times as large, while the observers are learning."""
    model = calibrated(small_table(dropout=0.0)).train()
    QatSchedule(0, 0, 5, 6).apply(model, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    large = small_batch(model.inputs, 16, times=10.0)

    validate(model, SmallWindows(large), 8, Precision("fp32", CPU))
    assert model.training and all(quantizer.observing for _, quantizer in quantizers(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    model(*large.inputs)  # what the same windows would have done in training
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert any(name.endswith("input_quantizer.seen_high") for name in changed)


def test_frozen_ranges_stay_while_the_weights_move(tmp_path: Path) -> None:
    model = calibrated(small_table())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Trace(model, tmp_path, QatSchedule(0, 0, 0, 8))
    parameters = {name for name, _ in model.named_parameters()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in parameters), name


def test_the_first_qat_update_starts_where_ptq_ends(tmp_path: Path) -> None:
    """On a model that has learned something."""
    table = small_table(dropout=0.0)
    untrained = table(*small_batch(table.inputs, 32, seed=7).inputs)
    Trace(table, tmp_path / "float", None)
    batch = small_batch(table.inputs, 32, seed=7)

    def loss(forecast: Tensor) -> float:
        return quantile_loss(forecast, batch.target, table.quantiles, table.target_scale).item()

    quantized = calibrated(table)
    with torch.no_grad():
        ptq, in_float = loss(quantized(*batch.inputs)), loss(table.eval()(*batch.inputs))
    assert ptq != in_float and in_float < 0.9 * loss(untrained)

    schedule, data = QatSchedule(0, 0, 1, 2), SmallWindows(batch)
    trainer = Trainer(
        quantized.train(),
        TrainingData(data, data),
        float_settings(TrainRecipe(epochs=1, batch_size=32, optimizer=OptimizerRecipe(lr=1e-4)), ValidateRecipe(), seed=3),
        Workplace(tmp_path / "qat", CPU, ListTimeline()),
        on_update=lambda update: schedule.apply(quantized, update),
    )
    trainer.fit()
    first = json.loads((tmp_path / "qat" / "metrics.jsonl").read_text())["train_loss"]
    assert first != in_float and first <= 1.05 * ptq


def closed_form(update: int, total: int, warmup: int, cooldown: int, floor: float) -> float:
    if update < warmup:
        return floor + (1 - floor) * update / warmup
    left = total - 1 - update
    return floor + (1 - floor) * (0.5 - 0.5 * math.cos(math.pi * min(left / cooldown, 1)))


def test_an_optimizer_built_before_prepare_holds_everything_and_follows_the_schedule() -> None:
    """Each trainable parameter by identity, each group's rate by the closed form, before and after."""
    table = small_table(dropout=0.0).train()
    optimizer = build_optimizer(table, OptimizerRecipe(lr=1e-3, groups={"history_selection.*": 1e-2}))
    batch = small_batch(table.inputs, 16)
    schedule = Schedule(total=10, warmup=3, cooldown=4, floor=0.05)
    model: TemporalFusionTransformer = table
    rates = []
    for update in range(10):
        if update == 4:
            model = prepare(table, lstm="int8")
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            assert held == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        QatSchedule(observe=4, fake_quant=5, freeze=9, total=10).apply(model, update)  # before prepare there is no quantizer
        schedule.apply(optimizer, update)
        rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})
        quantile_loss(model(*batch.inputs), batch.target, model.quantiles, model.target_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
        assert still == [], update

    assert len(rates[0]) == 4
    for update, found in enumerate(rates):
        factor = closed_form(update, 10, 3, 4, 0.05)
        for name, rate in found.items():
            assert rate == pytest.approx((1e-2 if name.startswith("history") else 1e-3) * factor), (update, name)
