"""The kind of recipe that trains a forecaster."""

from tftq.recipe.model import TftRecipe
from tftq.recipe.recipe_type import Idle, RecipeType, register
from tftq.recipe.schema import Recipe

_IDLE: tuple[Idle[Recipe], ...] = (
    Idle(
        ("model", "knots"),
        lambda recipe: isinstance(recipe.model, TftRecipe) and recipe.model.form != "knots",
        "model.form is not knots, so that each variable gets the knots that its curve needs",
    ),
    Idle(("quant", "calibration_windows"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "calibration"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "percentile"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "percentile"), lambda recipe: recipe.quant.calibration != "percentile", "quant.calibration is not percentile"),
    Idle(("quant", "weights"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "lstm"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "lstm"), lambda recipe: recipe.model.kind == "mamba2", "model.kind mamba2 has no LSTM"),
    Idle(("quant", "keep_float"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "sensitivity"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "loss_budget"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    Idle(("quant", "qat"), lambda recipe: recipe.quant.method != "qat", "quant.method is not qat"),
    Idle(("quant", "qat", "range_lr"), lambda recipe: recipe.quant.qat.ranges == "observe", "quant.qat.ranges is observe"),
    Idle(
        ("quant", "qat", "schedule", "floor"),
        lambda recipe: recipe.quant.qat.schedule.warmup == recipe.quant.qat.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    Idle(
        ("quant", "prune", "schedule", "floor"),
        lambda recipe: recipe.quant.prune is not None and recipe.quant.prune.schedule.warmup == recipe.quant.prune.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    Idle(
        ("train", "schedule", "floor"),
        lambda recipe: recipe.train.schedule.warmup == recipe.train.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    Idle(
        ("train", "patience"),
        lambda recipe: recipe.train.patience is not None and recipe.train.patience >= recipe.train.epochs,
        "training ends after train.epochs, no later",
    ),
    Idle(("validate", "offload_optimizer"), lambda recipe: recipe.device == "cpu", "device is cpu, so there is nowhere to take it"),
    Idle(
        ("validate", "offload_optimizer"),
        lambda recipe: recipe.validate.device == "cpu",
        "validate.device is cpu, so nothing is in its way",
    ),
    Idle(("validate", "device"), lambda recipe: recipe.device == "cpu", "device is cpu, so that validation is there as well"),
)

FORECASTER = register(
    RecipeType(
        schema=Recipe,
        of="a forecaster",
        command="python -m tftq.run",
        key=None,
        idle=_IDLE,
        beside=(("name",), ("out",), ("data", "cache")),
    )
)
