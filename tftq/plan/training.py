"""Plan the peaks of a recipe's stages, and find the largest forward passes that stay within its budget."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tftq.data.scaling import Scaling, TargetScaling
from tftq.errors import RecipeError
from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import evaluating
from tftq.model.batch import Batch
from tftq.model.curves import TableCurves
from tftq.model.forecaster import Forecaster
from tftq.model.tabulate import KNOT_COUNTS, put_tables
from tftq.model.tft import Form, TemporalFusionTransformer
from tftq.plan.peaks import ALLOCATOR_BLOCK, CUBLAS_WORKSPACE, CUDA_CONTEXT, PlannedPeak, plan_peaks
from tftq.quant.prepare import kept_layers, prepare
from tftq.quant.quantizers import learn_ranges, quantizers
from tftq.recipe.model import TftRecipe
from tftq.recipe.schema import Recipe
from tftq.spec.inputs import Inputs
from tftq.spec.units import MIB
from tftq.train.build import architecture_of, new_model
from tftq.train.in_backward import AppliedInBackward
from tftq.train.optimizer import build_optimizer
from tftq.train.stages import StageSettings, stage_settings, stages_of


@dataclass(frozen=True)
class StagePlan:
    """The planned memory of a stage of training on its device.

    Attributes:
        batch_size: windows to a forward pass of training.
        validation_batch: windows validated together.
        update: the peak of an update.
        validation: the peak of the validation between epochs, the optimizer's state on the device.
    """

    batch_size: int
    validation_batch: int
    update: PlannedPeak
    validation: PlannedPeak

    @property
    def validation_alone(self) -> PlannedPeak:
        """Return the peak of validation while the optimizer's state is off the device."""
        return self.validation.without("optimizer")


class DeployedSize(NamedTuple):
    """The number of weights of the exported model, of those that `quant.keep_float` keeps, and of rows of its history's table, if any."""

    weights: int
    kept: int
    knots: int


@dataclass(frozen=True)
class Planner:
    """Plans recipes for one set of inputs.

    Args:
        inputs: the columns and the window's shape.
        scaling: of the input columns.
        target_scaling: of the target.
        device: where the recipe will be trained; it need not be there to plan for it.
        windows: of the training part; no forward pass takes more.
        validation_windows: of the validation part.
    """

    inputs: Inputs
    scaling: Scaling
    target_scaling: TargetScaling
    device: torch.device
    windows: int = sys.maxsize
    validation_windows: int = sys.maxsize

    def plan(self, recipe: Recipe, batch_sizes: dict[str, int] | None = None) -> dict[str, StagePlan]:
        """Plan the stages of a recipe.

        Args:
            recipe: of the run.
            batch_sizes: windows to a forward pass of each stage; the recipe's own where left out.

        Raises:
            RecipeError: `quant.prune.keep` leaves nothing to prune.
        """
        sizes = batch_sizes or {}
        return {stage: self.plan_stage(recipe, stage, sizes.get(stage, recipe.train.batch_size)) for stage in stages_of(recipe)}

    def plan_stage(self, recipe: Recipe, stage: str, batch_size: int) -> StagePlan:
        """Plan one stage, computed in forward passes of `batch_size` windows."""
        validation_batch = recipe.validate.batch_size or batch_size
        make_model = {"train": self._model, "prune": self._pruned, "qat": self._prepared}[stage]
        settings = stage_settings(recipe, stage)
        cuda = self.device.type == "cuda"

        def make_steps() -> Sequence[Callable[[], object]]:
            group = min(settings.batch_size * settings.accumulate, self.windows)
            batches = min(batch_size, group), min(validation_batch, self.validation_windows)
            return _steps(make_model(recipe), settings, group, *batches, self._precision(settings))

        _, update, validation = plan_peaks(make_steps, rounding=ALLOCATOR_BLOCK if cuda else 1)
        if cuda:
            update, validation = (peak.plus("workspace", CUBLAS_WORKSPACE) for peak in (update, validation))
        return StagePlan(batch_size, validation_batch, update, validation)

    def peak_bytes(self, recipe: Recipe, plan: StagePlan) -> int:
        """Return the peak of a stage on its device, of training or of validation there."""
        validation = 0 if self.validates_on_cpu(recipe, plan) else self.validation(recipe, plan).peak_bytes
        return max(plan.update.peak_bytes, validation)

    def needed_bytes(self, recipe: Recipe, plan: StagePlan) -> int:
        """Return all memory of the device that a stage takes, including what no allocator counts."""
        return self.peak_bytes(recipe, plan) + self.allowance_bytes

    def validates_on_cpu(self, recipe: Recipe, plan: StagePlan) -> bool:
        """Check whether validation takes place on the CPU, as `validate.device` says: at cpu, and at auto where the GPU cannot hold it."""
        if self.device.type == "cpu" or recipe.validate.device == "train":
            return False
        too_large = self.validation(recipe, plan).peak_bytes > recipe.memory.budget_mb * MIB - self.allowance_bytes
        return too_large or recipe.validate.device == "cpu"

    def validation(self, recipe: Recipe, plan: StagePlan) -> PlannedPeak:
        """Return the peak of validation, with the optimizer's state where it must stay, or where it can."""
        movable = self.device.type == "cuda" and recipe.validate.offload_optimizer != "never"
        return plan.validation_alone if movable else plan.validation

    def offloads(self, recipe: Recipe, plan: StagePlan) -> bool:
        """Check whether the optimizer's state must leave the device, for validation within the budget and the peak of training."""
        limit = min(plan.update.peak_bytes, recipe.memory.budget_mb * MIB - self.allowance_bytes)
        return plan.validation.peak_bytes > limit

    @property
    def allowance_bytes(self) -> int:
        """Return the bytes that the device holds beside tensors."""
        return CUDA_CONTEXT if self.device.type == "cuda" else 0

    def within_budget(self, recipe: Recipe) -> dict[str, StagePlan]:
        """Plan as `plan` does, in the largest forward passes, up to the recipe's own, within `memory.budget_mb`.

        A stage whose smallest ones do not is planned as the recipe has it, and so is one that applies gradients in the backward pass, which
        forwards all windows of an update at once.
        """
        plans = self.plan(recipe)
        if recipe.train.optimizer.in_backward:
            return plans
        return {stage: self._largest_within(recipe, stage, plan) or plan for stage, plan in plans.items()}

    def largest_batches(self, recipe: Recipe, plans: Mapping[str, StagePlan]) -> dict[str, int]:
        """Find the largest forward pass of each stage that fits, in windows, up to the recipe's own; 0 where not even one window does."""
        found = {stage: self._largest_within(recipe, stage, plan) for stage, plan in plans.items()}
        return {stage: 0 if plan is None else plan.batch_size for stage, plan in found.items()}

    def _largest_within(self, recipe: Recipe, stage: str, over: StagePlan) -> StagePlan | None:
        """Find the plan with the largest forward pass that fits; None where not even one window does.

        The peak is nearly affine in the batch, so that the size on the line between one that fits and one that does not is tried next;
        every size is planned before it is taken.
        """
        budget = recipe.memory.budget_mb * MIB
        high = self.needed_bytes(recipe, over)
        if high <= budget:
            return over
        within = self.plan_stage(recipe, stage, 1)
        low = self.needed_bytes(recipe, within)
        if low > budget:
            return None
        while over.batch_size - within.batch_size > 1:
            steps = (budget - low) * (over.batch_size - within.batch_size) // (high - low)
            size = min(within.batch_size + max(steps, 1), over.batch_size - 1)
            tried = self.plan_stage(recipe, stage, size)
            needed = self.needed_bytes(recipe, tried)
            if needed <= budget:
                within, low = tried, needed
            else:
                over, high = tried, needed
        return within

    def deployed_size(self, recipe: Recipe) -> DeployedSize:
        """Count the weights of the exported model.

        Raises:
            QuantizationError: `quant.keep_float` matches nothing, or everything.
        """
        with FakeTensorMode():
            model = self._deployable(recipe)
            kept = kept_layers(model, lstm=recipe.quant.lstm, keep_float=recipe.quant.keep_float)
            knots = 0
            if isinstance(model, TemporalFusionTransformer):
                curves = model.history_selection.curves
                assert isinstance(curves, TableCurves)
                knots = curves.grid.rows
            return DeployedSize(_numbers(model), sum(_numbers(model.get_submodule(name)) for name in kept), knots)

    def _precision(self, settings: StageSettings) -> Precision:
        # On a GPU an LSTM in FP16 is one kernel, as it is in BF16 on the CPU, whose numbers are of the same size.
        as_on_gpu = self.device.type == "cuda" and settings.precision == "fp16"
        return Precision("bf16" if as_on_gpu else settings.precision, torch.device("cpu"))

    def _model(self, recipe: Recipe) -> Forecaster:
        return new_model(recipe.model, self.inputs, self.scaling, self.target_scaling)

    def _pruned(self, recipe: Recipe) -> Forecaster:
        assert isinstance(recipe.model, TftRecipe)
        architecture = architecture_of(recipe.model)
        form: Form = "folded" if architecture.form == "paper" else architecture.form  # pruning folds
        inputs = self._inputs_in_the_end(recipe)
        return TemporalFusionTransformer(inputs, self.scaling, self.target_scaling, replace(architecture, form=form))

    def _inputs_in_the_end(self, recipe: Recipe) -> Inputs:
        """Return the inputs of the exported model. Training decides which columns pruning keeps; others need as much, except categories."""
        if recipe.quant.prune is None:
            return self.inputs
        keep, names = recipe.quant.prune.keep, [column.name for column in self.inputs.history]
        if keep >= len(names):
            raise RecipeError(
                f"quant.prune.keep: found {keep}, but the data has {len(names)} history variables; allowed: fewer than these, "
                "or leave quant.prune out"
            )
        return self.inputs.without(names[keep:])

    def _prepared(self, recipe: Recipe) -> Forecaster:
        quant = recipe.quant
        prepared = prepare(self._deployable(recipe), lstm=quant.lstm, weights=quant.weights, keep_float=quant.keep_float).train()
        if recipe.quant.qat.ranges == "learn":
            learn_ranges(prepared)
        for _, quantizer in quantizers(prepared):  # both at once need most
            quantizer.observing = quantizer.enabled = True
        return prepared

    def _deployable(self, recipe: Recipe) -> Forecaster:
        """Build the model to quantize and export: a TFT in the table form."""
        if not isinstance(recipe.model, TftRecipe):
            return self._model(recipe)
        architecture = architecture_of(recipe.model)
        # The curves of the other forms decide how many knots they need; until they are trained, the most is planned.
        knots = architecture.knots if architecture.form == "knots" else KNOT_COUNTS[-1]
        inputs = self._inputs_in_the_end(recipe)
        table = TemporalFusionTransformer(inputs, self.scaling, self.target_scaling, replace(architecture, form="knots", knots=knots))
        put_tables(table)
        return table


def _numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _steps(
    model: Forecaster, settings: StageSettings, group: int, batch_size: int, validation_batch: int, precision: Precision
) -> Sequence[Callable[[], object]]:
    """Return the optimizer's first step, an update and a validation batch, as the trainer computes them."""
    optimizer = build_optimizer(model, settings.optimizer, range_lr=settings.range_lr)
    if settings.optimizer.in_backward:
        AppliedInBackward(optimizer)
    quantiles = torch.tensor(model.quantiles)
    passes = -(-group // batch_size)

    def batch(size: int) -> Batch:
        inputs = {name: torch.zeros(shape) for name, shape in model.inputs.shapes(size).items()}
        return Batch(inputs["history"], inputs["future"], inputs.get("static"), torch.zeros(size, model.inputs.horizon))

    def first_step() -> None:  # without meaning, and cheap: it creates the optimizer's state
        torch.stack([parameter.sum() for parameter in model.parameters()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def update() -> None:
        for _ in range(min(passes, 2)):  # the second is computed while the gradients of the first exist
            windows = batch(batch_size)
            with precision.autocast():
                forecast = model(*windows.inputs)
            quantile_loss(forecast, windows.target, quantiles, model.target_scale).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def validation() -> None:
        with evaluating(model), torch.no_grad(), precision.autocast():
            model(*batch(validation_batch).inputs)

    return first_step, update, validation
