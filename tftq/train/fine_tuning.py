"""What training goes on with where a trained model was changed: the recipe's own settings, at another rate and for fewer epochs."""

from collections.abc import Mapping

from tftq.recipe.schema import PruneRecipe, QatRecipe, Recipe, TrainRecipe


def fine_tuning(train: TrainRecipe, how: QatRecipe | PruneRecipe, *, groups: Mapping[str, float]) -> TrainRecipe:
    """Training's own settings with the epochs, learning rate and schedule of a later stage, and no early end.

    Args:
        train: the settings.
        how: the stage's part of the recipe.
        groups: of parameters that have a rate of their own; those of training have rates meant for training.
    """
    optimizer = train.optimizer.model_copy(update={"lr": how.lr, "groups": dict(groups)})
    return train.model_copy(update={"epochs": how.epochs, "optimizer": optimizer, "schedule": how.schedule, "patience": None})


def prune_settings(recipe: Recipe) -> TrainRecipe:
    """What a pruned model is trained on by."""
    assert recipe.quant.prune is not None
    return fine_tuning(recipe.train, recipe.quant.prune, groups={})
