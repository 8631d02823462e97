"""Build the model to train from a recipe and its data."""

from typing import overload

from tftq.data.scaling import Scaling, TargetScaling
from tftq.data.windows import Datasets
from tftq.model.forecaster import Forecaster
from tftq.model.mamba2 import Mamba2, Mamba2Architecture
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.recipe.model import Mamba2Recipe, ModelRecipe, TftRecipe
from tftq.spec.inputs import Inputs


@overload
def architecture_of(recipe: TftRecipe) -> Architecture: ...
@overload
def architecture_of(recipe: Mamba2Recipe) -> Mamba2Architecture: ...
def architecture_of(recipe: ModelRecipe) -> Architecture | Mamba2Architecture:
    """Return the sizes and form of a recipe's model."""
    if isinstance(recipe, Mamba2Recipe):
        return Mamba2Architecture(**recipe.model_dump(exclude={"kind"}))
    sizes = recipe.hidden, recipe.heads, recipe.lstm_layers, recipe.dropout
    return Architecture(*sizes, recipe.quantiles, recipe.form, recipe.knots, shared_gates=recipe.gates == "shared")


def new_model(recipe: ModelRecipe, inputs: Inputs, scaling: Scaling, target_scaling: TargetScaling) -> Forecaster:
    """Build a new model for some inputs and scalings."""
    if isinstance(recipe, Mamba2Recipe):
        return Mamba2(inputs, scaling, target_scaling, architecture_of(recipe))
    return TemporalFusionTransformer(inputs, scaling, target_scaling, architecture_of(recipe))


def build_model(recipe: ModelRecipe, data: Datasets) -> Forecaster:
    """Build a new model for the inputs and scalings of the data."""
    return new_model(recipe, data.train.inputs, data.scaling, data.target_scaling)
