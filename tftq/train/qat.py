"""Quantization-aware training: the same loop over a prepared model, with a phase schedule of its own."""

import math

from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import Recipe, TrainRecipe

FAKE_QUANT_SHARE = 0.05  # of all updates, before rounding begins
FREEZE_SHARE = 0.5  # of all updates, before the ranges stay


def qat_settings(recipe: Recipe) -> TrainRecipe:
    """Training's own settings, with the epochs, learning rate and schedule of QAT; groups belong to the GRNs that are gone."""
    qat = recipe.quant.qat
    optimizer = recipe.train.optimizer.model_copy(update={"lr": qat.lr, "groups": {}})
    return recipe.train.model_copy(update={"epochs": qat.epochs, "optimizer": optimizer, "schedule": qat.schedule, "patience": None})


def qat_schedule(recipe: Recipe, windows: int) -> QatSchedule:
    """The phases of QAT over so many training windows.

    Raises:
        QuantizationError: they are out of order, or there are more of them than updates.
    """
    qat = recipe.quant.qat
    total = qat.epochs * math.ceil(windows / (recipe.train.batch_size * recipe.train.accumulate))
    fake_quant = max(qat.observe, math.floor(FAKE_QUANT_SHARE * total)) if qat.fake_quant is None else qat.fake_quant
    freeze = max(fake_quant, math.floor(FREEZE_SHARE * total)) if qat.freeze is None else qat.freeze
    return QatSchedule(qat.observe, fake_quant, freeze, total)
