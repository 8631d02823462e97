"""Quantization-aware training end to end by the real trainer: formats, resuming in every phase, and ranges that are learned."""

import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests.model.small import small_model
from tests.quant.small import SmallWindows, calibrated, part, small_batch
from tests.train.stand_ins import metrics_lines, tiny_trainer
from tftq.errors import QuantizationError
from tftq.export.graph import build_forecaster
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.integers import quantization_parameters
from tftq.quant.quantizers import ActivationQuantizer, learn_ranges, quantizers
from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import BarsRecipe, OptimizerRecipe, QatRecipe, QuantRecipe, Recipe, ScheduleRecipe, TrainRecipe
from tftq.train.optimizer import build_optimizer
from tftq.train.stages import qat_schedule, stage_settings
from tftq.train.trainer import Trainer

Ranges = Literal["observe", "learn"]
PHASES = QatSchedule(observe=1, fake_quant=3, freeze=6, total=8)


class Interrupted(Exception):
    pass


def start(ranges: Ranges = "observe") -> TemporalFusionTransformer:
    model = calibrated(tabulate(small_model(static=False, hidden=8, heads=2, lstm_layers=1, knots=4))[0], windows=8)
    if ranges == "learn":
        learn_ranges(model)
    return model.train()


class Qat:
    """Two epochs of four updates; keeps every parameter and buffer as it was before each update."""

    def __init__(self, folder: Path, ranges: Ranges = "observe", *, stop_at: int | None = None, **options: Any) -> None:
        self.model = start(ranges)
        self.stop_at = stop_at
        self.states: list[dict[str, Tensor]] = []
        self.rates: list[dict[str, float]] = []
        data = SmallWindows(small_batch(self.model.inputs, 16, seed=7))
        given: dict[str, Any] = {
            "batch_size": 4,
            "epochs": 2,
            "optimizer": OptimizerRecipe(lr=1e-2),
            "schedule": ScheduleRecipe(warmup=0.25, cooldown=0.5, floor=0.1),
            "checkpoint_every": 1,
            "range_lr": 3e-2 if ranges == "learn" else None,
            **options,
        }
        self.trainer: Trainer = tiny_trainer(folder, self.model, train=data, validation=data, on_update=self.on_update, **given)
        self.trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *_: self.rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})
        )

    def on_update(self, update: int) -> None:
        if update == self.stop_at:
            raise Interrupted
        PHASES.apply(self.model, update)
        self.states.append(self.state())

    def state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def changed(self, first: int, last: int, ending: str) -> bool:
        """Whether any tensor with such a name differs between the beginnings of two updates."""
        here, there = self.states[first], self.states[last]
        return any(not torch.equal(value, there[name]) for name, value in here.items() if name.endswith(ending))


@pytest.fixture(scope="module", params=["observe", "learn"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Qat:
    run = Qat(tmp_path_factory.mktemp("whole"), request.param)
    torch.manual_seed(5)
    run.trainer.fit()
    return run


def ranges_of(run: Qat) -> Ranges:
    return "learn" if any(name.endswith(".stretch") for name in run.states[0]) else "observe"


@pytest.mark.parametrize("stop_at", [2, 4, 7], ids=["observing", "rounding", "frozen"])
def test_resumed_in_any_phase_equals_uninterrupted(whole: Qat, tmp_path: Path, stop_at: int) -> None:
    first = Qat(tmp_path, ranges_of(whole), stop_at=stop_at)
    torch.manual_seed(5)
    with pytest.raises(Interrupted):
        first.trainer.fit()
    second = Qat(tmp_path, ranges_of(whole))
    torch.manual_seed(99)
    second.trainer.fit(resume=True)

    assert len(whole.states) == 8 and len(second.states) == 1 + 8 - stop_at  # one more: of the phase it was interrupted in
    for update, found in enumerate(second.states[1:], start=stop_at):
        assert all(torch.equal(value, whole.states[update][name]) for name, value in found.items()), update
    ours, theirs = (torch.load(run.trainer.checkpoints.last)["optimizer"]["state"] for run in (second, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[index][name]) for index, state in ours.items() for name, value in state.items())


def test_what_moves_a_range_in_each_phase(whole: Qat) -> None:
    """Observed ranges from update 1 until 6, or until rounding begins, at 3, where learning takes over; nothing afterwards."""
    learning = ranges_of(whole) == "learn"
    ends, scales = (".high", ".largest"), (".scale", ".zero_point")
    for ending in ends:
        assert not whole.changed(0, 1, ending) and whole.changed(1, 3, ending)
        assert whole.changed(3, 6, ending) != learning
    assert whole.changed(3, 6, ".stretch") == learning and not whole.changed(0, 3, ".stretch")
    assert whole.changed(3, 6, ".scale")
    assert not any(whole.changed(6, 7, ending) for ending in (*ends, *scales, ".stretch"))
    assert whole.changed(6, 7, ".weight")


def test_learned_ranges_follow_the_schedule_in_a_group_of_their_own(whole: Qat) -> None:
    """lr(group, update) = base_lr(group) · factor(update)."""
    for update, rates in enumerate(whole.rates):
        left = 7 - update
        warmed, cooled = 0.1 + 0.9 * update / 2, 0.1 + 0.9 * (1 - math.cos(math.pi * left / 4)) / 2
        factor = warmed if update < 2 else cooled if left < 4 else 1.0
        expected = {"weights": 1e-2 * factor, "others": 1e-2 * factor}
        if ranges_of(whole) == "learn":
            expected["learned ranges"] = 3e-2 * factor
        assert rates == pytest.approx(expected), update


def test_the_deployed_scale_is_the_learned_one(tmp_path: Path) -> None:
    """Before freezing too, right after the optimizer moved it; validating on that model is what keeps it."""
    run = Qat(tmp_path, "learn", epochs=1)
    run.trainer.fit()  # ends at update 4, in the middle of learning
    best = torch.load(run.trainer.checkpoints.best)["model"]
    moved = 0
    for name, quantizer in quantizers(run.model):
        low, high = quantizer.range()
        scale, zero_point = quantization_parameters(low, high, quantizer.kind)
        assert torch.equal(quantizer.scale, scale) and torch.equal(quantizer.zero_point, zero_point), name
        assert torch.equal(best[f"{name}.scale"], scale)
        moved += int((best[f"{name}.stretch"] != 1).sum())
    assert moved > 100


@pytest.mark.parametrize("ranges", ["observe", "learn"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_under_autocast(tmp_path: Path, precision: str, ranges: Ranges) -> None:
    """Through every phase: what is learned, scales and weights stay in FP32 and finite."""
    run = Qat(tmp_path, ranges, precision=precision)
    result = run.trainer.fit()
    assert result.updates + result.skipped == 8 and result.skipped <= (precision == "fp16")  # which finds its loss scale first
    state = run.state()
    assert all(value.dtype == torch.float32 and bool(value.isfinite().all()) for name, value in state.items() if name.endswith("scale"))
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    losses = [line["train_loss"] for line in metrics_lines(tmp_path)]
    assert all(math.isfinite(loss) for loss in losses) and run.changed(3, 6, ".scale")


def test_smaller_forward_batches_observe_the_same_ranges(tmp_path: Path) -> None:
    found = []
    for forward in (4, 2, 1):
        run = Qat(tmp_path / str(forward), forward=forward)
        for module in run.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        run.trainer.fit()
        found.append(run.states[3])
    for name, value in found[0].items():
        if name.endswith((".low", ".high", ".seen_low", ".seen_high")):
            for other in found[1:]:
                torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_exporting_learns_nothing_and_gives_the_same_bytes_twice() -> None:
    """Of a model whose switches are still those of the middle of QAT."""
    model = start("learn")
    PHASES.apply(model, 4)
    batch = small_batch(model.inputs, 4, times=3.0)
    model(*batch.inputs).sum().backward()
    model.eval()(*part(batch, slice(0, 2)).inputs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert build_forecaster(model, "int8_qat", "points") == build_forecaster(model, "int8_qat", "points")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_learned_range_never_collapses() -> None:
    model = start("learn")
    for _, quantizer in quantizers(model):
        assert quantizer.stretch is not None
        with torch.no_grad():
            quantizer.stretch.fill_(-3.0)
    PHASES.apply(model, 3)
    for _, quantizer in quantizers(model):
        assert quantizer.stretch is not None and bool((quantizer.stretch == 0.01).all())
        low, high = quantizer.range()
        assert bool((low <= high).all())
        if isinstance(quantizer, ActivationQuantizer):
            torch.testing.assert_close(high, 0.01 * quantizer.high)


def recipe(**qat: Any) -> Recipe:
    return Recipe(
        name="qat",
        data=BarsRecipe(kind="bars", path=Path("bars.parquet")),
        train=TrainRecipe(batch_size=8, optimizer=OptimizerRecipe(groups={"*slope": 1e-3})),
        quant=QuantRecipe(method="qat", qat=QatRecipe(**qat)),
    )


def test_a_recipe_gives_learned_ranges_a_rate_of_their_own() -> None:
    learned, observed = (stage_settings(recipe(ranges=ranges, range_lr=0.02), "qat") for ranges in ("learn", "observe"))
    assert (learned.range_lr, observed.range_lr) == (0.02, None)
    assert learned.optimizer.groups == {}


def test_learned_ranges_are_found_whatever_they_are_called() -> None:
    """A parameter that merely has the name is none."""
    model = start("learn")
    model.register_parameter("stretch", nn.Parameter(torch.ones(2)))
    groups = {group["name"]: group for group in build_optimizer(model, OptimizerRecipe(lr=1e-2), range_lr=3e-2).param_groups}
    stretches = [quantizer.stretch for _, quantizer in quantizers(model) if quantizer.stretch is not None]
    assert len(stretches) > 1 and {id(parameter) for parameter in groups["learned ranges"]["params"]} == {id(one) for one in stretches}
    assert groups["learned ranges"]["base_lr"] == 3e-2 and groups["learned ranges"]["weight_decay"] == 0
    assert any(parameter is model.stretch for parameter in groups["others"]["params"])


def test_ranges_that_are_never_learned_are_refused() -> None:
    with pytest.raises(QuantizationError, match=r"ranges learn: .* from fake_quant 4 until freeze 4, which is never; allowed is"):
        qat_schedule(recipe(ranges="learn", fake_quant=4, freeze=4), windows=100)
    assert qat_schedule(recipe(fake_quant=4, freeze=4), windows=100).freeze == 4
