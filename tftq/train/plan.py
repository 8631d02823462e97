"""What the stages of a recipe will need at their peak, and the largest forward passes that stay within its budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tftq.data.columns import Batch, Inputs
from tftq.data.scaling import Scaling, TargetScaling
from tftq.memory.plan import ALLOCATOR_BLOCK, CUBLAS_WORKSPACE, CUDA_CONTEXT, MIB, PlannedPeak, planned_peaks
from tftq.model.tabulate import KNOT_COUNTS, put_tables
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.fake_quantize import quantizers
from tftq.quant.prepare import prepare
from tftq.recipe.schema import Recipe, TrainRecipe
from tftq.train.build import architecture_of
from tftq.train.loss import quantile_loss
from tftq.train.optimizer import build_optimizer
from tftq.train.precision import Precision
from tftq.train.qat import qat_settings
from tftq.train.validation import evaluating


@dataclass(frozen=True)
class StagePlan:
    """What a stage of training, "train" or "qat", will need on its device.

    Attributes:
        batch_size: windows to a forward pass of training.
        update: the peak of an update.
        validation: the peak of the validation between epochs, the optimizer's state on the device.
    """

    batch_size: int
    update: PlannedPeak
    validation: PlannedPeak

    @property
    def validation_alone(self) -> PlannedPeak:
        """The peak of validation while the optimizer's state is off the device."""
        return self.validation.without("optimizer")

    @property
    def peak_bytes(self) -> int:
        """The larger of the peaks of training and validation."""
        return max(self.update.peak_bytes, self.validation.peak_bytes)


@dataclass(frozen=True)
class Planner:
    """Plans recipes for one set of inputs.

    Args:
        inputs: the columns and the window's shape.
        scaling: of the input columns.
        target_scaling: of the target.
        device: where the recipe will be trained; it need not be there to plan for it.
    """

    inputs: Inputs
    scaling: Scaling
    target_scaling: TargetScaling
    device: torch.device

    def plan(self, recipe: Recipe, batch_sizes: dict[str, int] | None = None) -> dict[str, StagePlan]:
        """The plans of `train`, and of `qat` where the recipe has it.

        Args:
            recipe: what is to be trained.
            batch_sizes: windows to a forward pass of each stage; the recipe's own where left out.
        """
        stages = ("train", "qat") if recipe.quant.method == "qat" else ("train",)
        return {stage: self.plan_stage(recipe, stage, (batch_sizes or {}).get(stage, recipe.train.batch_size)) for stage in stages}

    def plan_stage(self, recipe: Recipe, stage: str, batch_size: int) -> StagePlan:
        """One of them, computed in forward passes of `batch_size` windows."""
        validation_batch = recipe.validate.batch_size or batch_size
        make_model, settings = (self._model, recipe.train) if stage == "train" else (self._table, qat_settings(recipe))
        cuda = self.device.type == "cuda"

        def make_steps() -> Sequence[Callable[[], object]]:
            return _steps(make_model(recipe), settings, batch_size, validation_batch, self._precision(settings))

        first, second, validation = planned_peaks(make_steps, rounding=ALLOCATOR_BLOCK if cuda else 1)
        peaks = max(first, second, key=lambda peak: peak.peak_bytes), validation
        if cuda:
            peaks = peaks[0].plus("workspace", CUBLAS_WORKSPACE), peaks[1].plus("workspace", CUBLAS_WORKSPACE)
        return StagePlan(batch_size, *peaks)

    def allowance_bytes(self) -> int:
        """What the device holds beside tensors, and no allocator counts."""
        return CUDA_CONTEXT if self.device.type == "cuda" else 0

    def fits(self, recipe: Recipe, plan: StagePlan) -> bool:
        """Whether a stage stays within `memory.budget_mb`, validation with the optimizer's state where it stays on the device."""
        stays = self.device.type == "cpu" or recipe.validate.offload_optimizer == "never"
        validation = plan.validation if stays else plan.validation_alone
        return max(plan.update.peak_bytes, validation.peak_bytes) + self.allowance_bytes() <= recipe.memory.budget_mb * MIB

    def largest_fitting(self, recipe: Recipe, stage: str, over: StagePlan) -> StagePlan | None:
        """The plan with the largest forward pass that fits.

        The peak is the largest of several amounts that are affine in the batch, thus convex: a line between a size that fits and one that
        does not runs above it, so that where the line meets the budget fits as well.

        Args:
            recipe: what is to be trained.
            stage: "train" or "qat".
            over: its plan at a size that does not fit.

        Returns:
            None where not even one window to a forward pass fits.
        """
        budget = recipe.memory.budget_mb * MIB - self.allowance_bytes()
        if over.batch_size == 1 or not self.fits(recipe, within := self.plan_stage(recipe, stage, 1)):
            return None
        while over.batch_size - within.batch_size > 1:
            slope = (over.peak_bytes - within.peak_bytes) / (over.batch_size - within.batch_size)
            size = within.batch_size + int((budget - within.peak_bytes) / slope)
            size = min(max(size, within.batch_size + 1), over.batch_size - 1)
            tried = self.plan_stage(recipe, stage, size)
            if self.fits(recipe, tried):
                within = tried
            else:
                over = tried
        return within

    def _precision(self, settings: TrainRecipe) -> Precision:
        # On a GPU an LSTM in FP16 is one kernel, as it is in BF16 on the CPU, whose numbers are of the same size.
        as_on_gpu = self.device.type == "cuda" and settings.precision == "fp16"
        return Precision("bf16" if as_on_gpu else settings.precision, torch.device("cpu"))

    def _model(self, recipe: Recipe) -> TemporalFusionTransformer:
        return TemporalFusionTransformer(self.inputs, self.scaling, self.target_scaling, architecture_of(recipe.model))

    def _table(self, recipe: Recipe) -> TemporalFusionTransformer:
        architecture = architecture_of(recipe.model)
        # The curves of the other forms decide how many knots they need; until they are trained, the most is what is planned.
        knots = architecture.knots if architecture.form == "knots" else KNOT_COUNTS[-1]
        built = TemporalFusionTransformer(self.inputs, self.scaling, self.target_scaling, replace(architecture, form="knots", knots=knots))
        put_tables(built)
        prepared = prepare(built, lstm=recipe.quant.lstm).train()
        for _, quantizer in quantizers(prepared):  # both at once is what needs most
            quantizer.observing = quantizer.enabled = True
        return prepared


def _steps(
    model: TemporalFusionTransformer, settings: TrainRecipe, batch_size: int, validation_batch: int, precision: Precision
) -> Sequence[Callable[[], object]]:
    """Two updates, the second with the optimizer's state that the first one made, and a validation batch, as the trainer computes them."""
    optimizer = build_optimizer(model, settings.optimizer)
    quantiles = torch.tensor(model.quantiles)
    passes = -(-settings.batch_size * settings.accumulate // batch_size)

    def batch(size: int) -> Batch:
        inputs = {name: torch.zeros(shape) for name, shape in model.inputs.shapes(size).items()}
        return Batch(inputs["history"], inputs["future"], inputs.get("static"), torch.zeros(size, model.inputs.horizon))

    def update() -> None:
        for _ in range(min(passes, 2)):  # the second is computed while the gradients of the first are there
            windows = batch(batch_size)
            with precision.autocast():
                forecast = model(*windows.inputs)
            quantile_loss(forecast, windows.target, quantiles, model.target_scale).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def validation() -> None:
        with evaluating(model), torch.no_grad(), precision.autocast():
            model(*batch(validation_batch).inputs)

    return update, update, validation
