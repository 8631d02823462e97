"""The stages of training that a recipe has, and what each of them trains by."""

from collections.abc import Callable

from tftq.recipe.schema import Recipe, TrainRecipe
from tftq.train.fine_tuning import prune_settings
from tftq.train.qat import qat_settings

SETTINGS: dict[str, Callable[[Recipe], TrainRecipe]] = {
    "train": lambda recipe: recipe.train,
    "prune": prune_settings,
    "qat": qat_settings,
}


def stages_of(recipe: Recipe) -> tuple[str, ...]:
    """In their order."""
    has = {"train": True, "prune": recipe.quant.prune is not None, "qat": recipe.quant.method == "qat"}
    return tuple(stage for stage in SETTINGS if has[stage])
