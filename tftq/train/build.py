"""From a recipe and its data to the model that is trained."""

from tftq.data.windows import Datasets
from tftq.model.tft import Architecture, TemporalFusionTransformer
from tftq.recipe.schema import ModelRecipe


def architecture_of(recipe: ModelRecipe) -> Architecture:
    """The sizes and form that a recipe asks for."""
    sizes = recipe.hidden, recipe.heads, recipe.lstm_layers, recipe.dropout
    return Architecture(*sizes, recipe.quantiles, recipe.form, recipe.knots, shared_gates=recipe.gates == "shared")


def build_model(recipe: ModelRecipe, data: Datasets) -> TemporalFusionTransformer:
    """A new model for the inputs and scalings of the data."""
    return TemporalFusionTransformer(data.train.inputs, data.scaling, data.target_scaling, architecture_of(recipe))
