"""Properties that hold on every device, each measured as one number with an upper limit."""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import parameters_to_vector

from benchmarks.gpu.reference import SMALL, RandomWindows
from tests.model.recurrence import operands, recurrence
from tests.model.small import example, small_mamba2, small_model
from tftq.evaluate.loss import quantile_loss
from tftq.export.graph import build_forecaster
from tftq.memory.timeline import MemoryRecorder
from tftq.model.batch import Batch
from tftq.model.curves import FoldedCurves, KnotCurves
from tftq.model.folding import fold
from tftq.model.forecaster import Forecaster
from tftq.model.mamba2 import chunked_scan
from tftq.model.tabulate import tabulate
from tftq.model.tft import Form, TemporalFusionTransformer
from tftq.model.variable_selection import PaperVariableSelection
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.quant.quantizers import quantizers
from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import OptimizerRecipe, TrainRecipe, ValidateRecipe
from tftq.serve.session import InferenceSession, feeds
from tftq.train.context import Timeline, TrainingData, Workplace
from tftq.train.optimizer import build_optimizer
from tftq.train.stages import float_settings
from tftq.train.trainer import Trainer
from tftq.train.validate import offloaded

FP32 = 1e-4  # of the values' spread: sums in another order
INTEGER_STEP = 1 / 255  # of the values' spread: one step, where another order of a sum rounds a tie the other way


@dataclass(frozen=True)
class Agreement:
    """One property: `measure(device)` is at most `allowed`."""

    name: str
    allowed: float
    measure: Callable[[torch.device], float]

    def row(self, device: torch.device) -> dict[str, Any]:
        """The check's name, what was measured and allowed, and whether it passed."""
        with _exact_products():
            measured = self.measure(device)
        if not math.isfinite(measured):
            raise ArithmeticError(f"measured {measured}, at most {self.allowed:.3g} is allowed")
        return {"check": self.name, "measured": measured, "allowed": self.allowed, "passed": measured <= self.allowed}


def folded_equals_paper(device: torch.device) -> float:
    """The forecasts of a paper model and of its folded form."""
    paper = small_model("paper").to(device).eval()
    inputs = _example(device)
    return _distance(fold(paper)(*inputs), paper(*inputs))


def knots_equal_folded_at_the_knots(device: torch.device) -> float:
    """The mixes of both forms of the history's curves, each value on one of its knots."""
    knots = small_model("knots").to(device)
    folded = small_model("folded").to(device)
    folded.load_state_dict(knots.state_dict(), strict=False)  # all but the grid
    curves, true = (model.get_submodule("history_selection.curves") for model in (knots, folded))
    assert isinstance(curves, KnotCurves) and isinstance(true, FoldedCurves)
    rows = torch.arange(32, device=device)
    x = torch.stack([curves.grid.knots(variable)[rows % count] for variable, count in enumerate(curves.grid.counts)], dim=1)
    weights = torch.rand(x.shape, device=device)
    return _distance(true.mix(x, weights), curves.mix(x, weights))


def checkpointed_equals_stacked(device: torch.device) -> float:
    """The forecasts and every gradient of chunks that are recomputed and of all variables kept at once."""

    def forecast_and_gradients(form: Form, chunk: int | None) -> tuple[Tensor, Tensor]:
        model = _without_dropout(small_model(form).to(device))
        for module in model.modules():
            if isinstance(module, FoldedCurves | PaperVariableSelection):
                module.chunk = chunk
        forecast = model(*_example(device))
        gradients = torch.autograd.grad(forecast.square().mean(), list(model.parameters()))
        return forecast, parameters_to_vector(gradients)

    forms: tuple[Form, ...] = ("paper", "folded")
    return max(
        _distance(one, other)
        for form in forms
        for one, other in zip(forecast_and_gradients(form, 2), forecast_and_gradients(form, None), strict=True)
    )


def skipped_step_changes_nothing(device: torch.device) -> float:
    """How far weights and learning rate move in a training of one FP16 update that overflows, and is so counted."""
    with _trainer(device, windows=4, precision="fp16") as trainer:
        trainer.scaler = GradScaler(device.type, init_scale=2.0**120)
        before = _weights(trainer)
        rate = trainer.schedule.factor(0) * trainer.settings.optimizer.lr
        done = trainer.fit()
        wrongly_counted = float((done.updates, done.skipped) != (0, 1))
        return _distance(_weights(trainer), before) + abs(trainer.optimizer.param_groups[0]["lr"] - rate) + wrongly_counted


def resumed_equals_uninterrupted(device: torch.device) -> float:
    """The weights after 12 updates, and after 12 with an interruption before the eighth."""

    def interrupt(update: int) -> None:
        if update == 7:
            raise _InterruptedError

    with tempfile.TemporaryDirectory() as folder:
        with _trainer(device, epochs=3) as whole:
            whole.fit()
        with suppress(_InterruptedError), _trainer(device, Path(folder), on_update=interrupt, epochs=3, checkpoint_every=1) as first:
            first.fit()
        with _trainer(device, Path(folder), epochs=3, checkpoint_every=1) as second:
            second.fit(resume=True)
    return _distance(_weights(second), _weights(whole))


def offloaded_state_returns(device: torch.device) -> float:
    """How many tensors of the optimizer's state differ, or lie elsewhere, after having been off the device."""
    model = small_model().to(device)
    optimizer = build_optimizer(model, TrainRecipe().optimizer)
    windows = _batch(device)
    quantile_loss(model(*windows.inputs), windows.target, model.quantiles, model.target_scale).backward()
    optimizer.step()

    def state() -> list[tuple[torch.device, Tensor]]:
        return [(value.device, value.cpu().clone()) for entry in optimizer.state.values() for value in entry.values()]

    before = state()
    with offloaded(optimizer):
        left = sum(where.type != "cpu" for where, _ in state())
    after = state()
    return float(left + sum(a != c or not torch.equal(b, d) for (a, b), (c, d) in zip(before, after, strict=True)))


def validation_leaves_no_bytes(device: torch.device) -> float:
    """Bytes that are allocated after a validation more or less than before it, in the second epoch, when every cache is filled."""
    with tempfile.TemporaryDirectory() as folder:
        watch = MemoryRecorder(Path(folder) / "memory.jsonl", device)
        allocated: dict[tuple[str, int], int] = {}

        class Reader:
            def record(self, phase: str, epoch: int) -> None:
                found = watch.probe.read().allocated
                assert found is not None
                allocated[phase, epoch] = found

        with watch.recording(), _trainer(device, timeline=Reader(), epochs=2) as trainer:
            trainer.fit()
    return float(abs(allocated["AFTER_VALIDATION", 2] - allocated["BEFORE_VALIDATION", 2]))


def calibrated_as_on_the_cpu(device: torch.device) -> float:
    """The scales that calibration finds on the device and on the CPU, largest relative distance."""
    here, there = (dict(quantizers(_calibrated(place))) for place in (device, torch.device("cpu")))
    return max(float((here[name].scale.cpu() / there[name].scale - 1).abs().max()) for name in there)


def fake_quantized_as_on_the_cpu(device: torch.device) -> float:
    """The forecasts of one calibrated model on the device and on the CPU."""
    model = _calibrated(torch.device("cpu"))
    expected = model(*_example(torch.device("cpu")))
    return _distance(model.to(device)(*_example(device)).cpu(), expected)


def quantized_training_reaches_every_parameter(device: torch.device) -> float:
    """How many parameters get no gradient, or one that is not finite, from an update that observes and rounds."""
    model = _calibrated(device).train()
    QatSchedule(observe=0, fake_quant=0, freeze=1, total=2).apply(model, 0)
    windows = _batch(device)
    quantile_loss(model(*windows.inputs), windows.target, model.quantiles, model.target_scale).backward()
    return float(sum(parameter.grad is None or not bool(parameter.grad.isfinite().all()) for parameter in model.parameters()))


def exported_as_computed(device: torch.device) -> float:
    """The forecasts of a float table model on the device, and of its export from there in ONNX Runtime's CPU provider."""
    return _distance_of_export(tabulate(small_model().to(device))[0], device)


def chunked_equals_recurrence(device: torch.device) -> float:
    """The scan of a Mamba-2 in chunks of 16 and row after row."""
    parts = [part.to(device) for part in operands(70, 0.5, seed=1)]
    return _distance(chunked_scan(*parts, chunk=16), recurrence(*parts))


def exported_mamba2_as_computed(device: torch.device) -> float:
    """As `exported_as_computed`, for a Mamba-2."""
    return _distance_of_export(small_mamba2().to(device), device)


def exported_int8_as_computed(device: torch.device) -> float:
    """As `exported_as_computed`, for a calibrated model in integers."""
    return _distance_of_export(_calibrated(device), device)


AGREEMENTS = (
    Agreement("folded equals paper, of the spread", FP32, folded_equals_paper),
    Agreement("knots equal folded at the knots, of the spread", FP32, knots_equal_folded_at_the_knots),
    Agreement("checkpointed equals stacked, gradients too, of the spread", 1e-3, checkpointed_equals_stacked),
    Agreement("a skipped FP16 step moves weights or learning rate", 0, skipped_step_changes_nothing),
    Agreement("resumed equals uninterrupted, of the weights' spread", 1e-3, resumed_equals_uninterrupted),
    Agreement("optimizer state that was off the device and changed, tensors", 0, offloaded_state_returns),
    Agreement("validation leaves or takes, bytes", 0, validation_leaves_no_bytes),
    Agreement("calibrated scales against the CPU's, relative", 1e-3, calibrated_as_on_the_cpu),
    Agreement("fake-quantized against the CPU, of the spread", INTEGER_STEP, fake_quantized_as_on_the_cpu),
    Agreement("parameters that QAT does not reach", 0, quantized_training_reaches_every_parameter),
    Agreement("ONNX FP32 exported from the device, of the spread", FP32, exported_as_computed),
    Agreement("ONNX INT8 exported from the device, of the spread", INTEGER_STEP, exported_int8_as_computed),
    Agreement("Mamba-2: chunked scan equals the recurrence, of the spread", 1e-5, chunked_equals_recurrence),
    Agreement("Mamba-2: ONNX FP32 exported from the device, of the spread", FP32, exported_mamba2_as_computed),
)


class _InterruptedError(Exception):
    """Stands for whatever ends a process."""


class _NoTimeline:
    def record(self, phase: str, epoch: int) -> None:
        """Nothing."""


@contextmanager
def _exact_products() -> Iterator[None]:
    """FP32 products in FP32, not in TF32, which cuDNN's LSTM uses otherwise."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _trainer(
    device: torch.device,
    folder: Path | None = None,
    *,
    windows: int = 16,
    timeline: Timeline | None = None,
    on_update: Callable[[int], None] = lambda update: None,
    **settings: Any,
) -> Iterator[Trainer]:
    """A trainer of a small model in batches of 4, which writes into a folder that goes with it where none is given."""
    with tempfile.TemporaryDirectory() as own:
        torch.manual_seed(7)
        yield Trainer(
            SMALL.model(SMALL.recipe("none", "fp32", 4)),
            TrainingData(RandomWindows(SMALL, windows), RandomWindows(SMALL, 4, seed=2)),
            float_settings(
                TrainRecipe(**{"epochs": 1, "batch_size": 4, "optimizer": OptimizerRecipe(lr=1e-2), **settings}), ValidateRecipe(), seed=7
            ),
            Workplace(folder or Path(own), device, timeline or _NoTimeline(), "small"),
            on_update=on_update,
        )


def _calibrated(device: torch.device) -> TemporalFusionTransformer:
    model = prepared_copy(tabulate(small_model().to(device))[0], lstm="int8")
    calibrate(model, [_batch(device)])
    return model


def _example(device: torch.device, batch: int = 8) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device) for tensor in example(small_model().inputs, batch))


def _batch(device: torch.device) -> Batch:
    history, future, static = _example(device)
    return Batch(history, future, static, future.mean(dim=-1))


def _distance_of_export(model: Forecaster, device: torch.device) -> float:
    inputs = _example(device)
    expected = model.eval()(*inputs)
    session = InferenceSession(build_forecaster(model, "fp32", "points"), providers=["CPUExecutionProvider"])
    found = session.run(["forecast"], feeds(session, [tensor.cpu() for tensor in inputs]))[0]
    return _distance(torch.from_numpy(found), expected.cpu())


def _without_dropout(model: nn.Module) -> nn.Module:
    """In training mode all the same: cuDNN's LSTM has no backward pass in another."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.LSTM):
            module.dropout = 0.0
    return model.train()


def _weights(trainer: Trainer) -> Tensor:
    """All of them in one vector."""
    return parameters_to_vector(trainer.model.parameters()).detach()


@torch.no_grad()
def _distance(one: Tensor, other: Tensor) -> float:
    """The largest distance, as a share of the other's spread, or of one where it has none."""
    spread = float(other.max() - other.min()) or 1.0
    return float((one - other).abs().max()) / spread
