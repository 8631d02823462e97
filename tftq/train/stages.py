"""Derive the settings of each stage of training from a recipe, and the phases of quantization-aware training."""

import math
from dataclasses import dataclass, replace

from tftq.errors import QuantizationError
from tftq.evaluate.precision import Name
from tftq.quant.schedule import QatSchedule
from tftq.recipe.schema import OptimizerRecipe, PruneRecipe, QatRecipe, Recipe, ScheduleRecipe, TrainRecipe, ValidateRecipe
from tftq.spec.stages import STAGES

FAKE_QUANT_SHARE = 0.05  # of all updates, before rounding begins
FREEZE_SHARE = 0.5  # of all updates, before the ranges stay


@dataclass(frozen=True)
class StageSettings:
    """The settings of a stage of training.

    Args:
        name: of the stage, a key of `STAGES`.
        seed: of the order of the windows.
        epochs: how many.
        batch_size: windows to a batch.
        accumulate: batches to an update.
        precision: the number format.
        clip_norm: the limit on the norm of an update's gradients; None for no clipping.
        optimizer: the optimizer, its learning rates and weight decay.
        schedule: the learning rate's course.
        validate: how often, where and in which batches to validate.
        memory_every: batches between two records of memory.
        patience: epochs without improvement before stopping; None to train to the end.
        checkpoint_every: updates between checkpoints, beside the one of each epoch.
        range_lr: the learning rate of learned quantization ranges; None where none are learned.
        best_from: the first update whose model may be the best one; QAT begins at the update that quantizes everything.
        keep_start: the given model counts as epoch 0, and is the result where no epoch improves on it.
        forward_batch: windows to a forward pass, at most `batch_size`, which is the default. Fewer need less memory; an update is computed
            from the same windows, and its gradients are the same apart from rounding. Halved where memory runs out.
        offload: where `validate.offload_optimizer` is auto, whether the optimizer's state leaves a GPU during validation from the start.
    """

    name: str
    seed: int
    epochs: int
    batch_size: int
    accumulate: int
    precision: Name
    clip_norm: float | None
    optimizer: OptimizerRecipe
    schedule: ScheduleRecipe
    validate: ValidateRecipe
    memory_every: int
    patience: int | None = None
    checkpoint_every: int | None = None
    range_lr: float | None = None
    best_from: int = 0
    keep_start: bool = False
    forward_batch: int | None = None
    offload: bool = True

    def __post_init__(self) -> None:
        assert self.name in STAGES, self.name
        assert self.forward_batch is None or 1 <= self.forward_batch <= self.batch_size, (self.forward_batch, self.batch_size)
        assert not self.optimizer.in_backward or self.forward_batch in (None, self.batch_size)


def stages_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of a recipe's stages, in their order."""
    has = {"train": True, "prune": recipe.quant.prune is not None, "qat": recipe.quant.method == "qat"}
    return tuple(name for name in STAGES if has[name])


def stage_settings(recipe: Recipe, name: str) -> StageSettings:
    """Return the settings of a stage of a recipe."""
    if name == "train":
        return float_settings(recipe.train, recipe.validate, seed=recipe.seed)
    if name == "prune":
        assert recipe.quant.prune is not None
        return _fine_tuning(recipe, name, recipe.quant.prune)
    qat = recipe.quant.qat
    return _fine_tuning(recipe, name, qat, range_lr=qat.range_lr if qat.ranges == "learn" else None)


def float_settings(train: TrainRecipe, validate: ValidateRecipe, *, seed: int) -> StageSettings:
    """Return the settings of training in floating point.

    Args:
        train: the recipe's section.
        validate: the recipe's section.
        seed: of the order of the windows.
    """
    return StageSettings(
        name="train",
        seed=seed,
        epochs=train.epochs,
        batch_size=train.batch_size,
        accumulate=train.accumulate,
        precision=train.precision,
        clip_norm=train.clip_norm,
        optimizer=train.optimizer,
        schedule=train.schedule,
        validate=validate,
        memory_every=train.memory_every,
        patience=train.patience,
        checkpoint_every=train.checkpoint_every,
    )


def _fine_tuning(recipe: Recipe, name: str, section: PruneRecipe | QatRecipe, *, range_lr: float | None = None) -> StageSettings:
    """Return the settings of a stage that trains a changed model further: no early end, and one learning rate for all but ranges.

    The rates of training's param groups are meant for training alone.
    """
    train = recipe.train
    optimizer = OptimizerRecipe(
        name=train.optimizer.name, in_backward=train.optimizer.in_backward, lr=section.lr, weight_decay=train.optimizer.weight_decay
    )
    return replace(
        float_settings(train, recipe.validate, seed=recipe.seed),
        name=name,
        epochs=section.epochs,
        optimizer=optimizer,
        schedule=section.schedule,
        patience=None,
        range_lr=range_lr,
        keep_start=STAGES[name].fine_tunes,
    )


def qat_schedule(recipe: Recipe, windows: int) -> QatSchedule:
    """Return the phases of QAT over a number of training windows.

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
