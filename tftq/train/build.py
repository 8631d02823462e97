"""From a recipe and its data to the model that is trained, and to what training it will need."""

from collections.abc import Callable
from dataclasses import replace

import torch

from tftq.data.columns import Batch, Inputs
from tftq.data.scaling import Scaling, TargetScaling
from tftq.data.windows import Datasets
from tftq.memory.plan import PlannedPeak, planned_peak
from tftq.model.tabulate import KNOT_COUNTS, put_tables
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.quant.fake_quantize import quantizers
from tftq.quant.prepare import prepare
from tftq.recipe.schema import ModelRecipe, Recipe, TrainRecipe
from tftq.train.loss import quantile_loss
from tftq.train.optimizer import build_optimizer
from tftq.train.precision import Precision
from tftq.train.qat import qat_settings


def architecture_of(recipe: ModelRecipe) -> Architecture:
    """The sizes and form that a recipe asks for."""
    return Architecture(
        recipe.hidden, recipe.heads, recipe.lstm_layers, recipe.dropout, recipe.quantiles, form=recipe.form, knots=recipe.knots
    )


def build_model(recipe: ModelRecipe, data: Datasets) -> TemporalFusionTransformer:
    """A new model for the inputs and scalings of the data."""
    return TemporalFusionTransformer(data.train.inputs, data.scaling, data.target_scaling, architecture_of(recipe))


def plan_training(recipe: Recipe, inputs: Inputs, scaling: Scaling, target_scaling: TargetScaling) -> dict[str, PlannedPeak]:
    """What the stages of a run will need at their peak, from fake tensors on the CPU, in the recipe's number format.

    Returns:
        The peak of `train`, and of `qat` where the recipe has it.
    """
    architecture = architecture_of(recipe.model)

    def model() -> TemporalFusionTransformer:
        return TemporalFusionTransformer(inputs, scaling, target_scaling, architecture)

    def table() -> TemporalFusionTransformer:
        # The curves of the other forms decide how many knots they need; until they are trained, the most is what is planned.
        knots = architecture.knots if architecture.form == "knots" else KNOT_COUNTS[-1]
        built = TemporalFusionTransformer(inputs, scaling, target_scaling, replace(architecture, form="knots", knots=knots))
        put_tables(built)
        prepared = prepare(built, lstm=recipe.quant.lstm).train()
        for _, quantizer in quantizers(prepared):  # both at once is what needs most
            quantizer.observing = quantizer.enabled = True
        return prepared

    plans = {"train": planned_peak(lambda: _update(model(), recipe.train))}
    if recipe.quant.method == "qat":
        plans["qat"] = planned_peak(lambda: _update(table(), qat_settings(recipe)))
    return plans


def _update(model: TemporalFusionTransformer, settings: TrainRecipe) -> Callable[[], None]:
    """One update of a model on batches of zeros, as the trainer computes it."""
    optimizer = build_optimizer(model, settings.optimizer)
    shapes = model.inputs.shapes(settings.batch_size)
    quantiles = torch.tensor(model.quantiles)
    precision = Precision(settings.precision, torch.device("cpu"))

    def batch() -> Batch:
        inputs = {name: torch.zeros(shape) for name, shape in shapes.items()}
        target = torch.zeros(settings.batch_size, model.inputs.horizon)
        return Batch(inputs["history"], inputs["future"], inputs.get("static"), target)

    def update() -> None:
        for _ in range(settings.accumulate):
            windows = batch()
            with precision.autocast():
                forecast = model(*windows.inputs)
            quantile_loss(forecast, windows.target, quantiles, model.target_scale).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update
