"""Quantization-aware training: the same loop over a prepared model, with a phase schedule of its own."""

import math

from tftq.errors import QuantizationError
from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import Recipe, TrainRecipe
from tftq.train.fine_tuning import fine_tuning

RANGES = "*.stretch"  # the names of the parameters that ranges are learned through
FAKE_QUANT_SHARE = 0.05  # of all updates, before rounding begins
FREEZE_SHARE = 0.5  # of all updates, before the ranges stay


def qat_settings(recipe: Recipe) -> TrainRecipe:
    """Training's own settings, with the epochs, learning rate and schedule of QAT; groups belong to the GRNs that are gone.

    Ranges that are learned are a param group of their own.
    """
    qat = recipe.quant.qat
    return fine_tuning(recipe.train, qat, groups={RANGES: qat.range_lr} if qat.ranges == "learn" else {})


def qat_schedule(recipe: Recipe, windows: int) -> QatSchedule:
    """The phases of QAT over so many training windows.

    Raises:
        QuantizationError: they are out of order, or there are more of them than updates, or ranges are to be learned and no update is
            left for it.
    """
    qat = recipe.quant.qat
    total = qat.epochs * math.ceil(windows / (recipe.train.batch_size * recipe.train.accumulate))
    fake_quant = max(qat.observe, math.floor(FAKE_QUANT_SHARE * total)) if qat.fake_quant is None else qat.fake_quant
    freeze = max(fake_quant, math.floor(FREEZE_SHARE * total)) if qat.freeze is None else qat.freeze
    schedule = QatSchedule(qat.observe, fake_quant, freeze, total)
    if qat.ranges == "learn" and fake_quant == freeze:
        raise QuantizationError(
            f"quant.qat.ranges learn: ranges are learned from fake_quant {fake_quant} until freeze {freeze}, which is never; allowed is "
            "fake_quant < freeze: lower quant.qat.fake_quant or raise quant.qat.freeze"
        )
    return schedule
