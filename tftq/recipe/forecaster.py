"""The type of recipe that trains a forecaster."""

from tftq.recipe.model import TftRecipe
from tftq.recipe.recipe_type import RecipeType, UnusedOption, register
from tftq.recipe.schema import Recipe

_UNUSED: tuple[UnusedOption[Recipe], ...] = (
    UnusedOption(
        ("model", "knots"),
        lambda recipe: isinstance(recipe.model, TftRecipe) and recipe.model.form != "knots",
        "model.form is not knots, so that each variable gets the knots that its curve needs",
    ),
    UnusedOption(("quant", "calibration_windows"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "calibration"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "percentile"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "percentile"), lambda recipe: recipe.quant.calibration != "percentile", "quant.calibration is not percentile"),
    UnusedOption(("quant", "weights"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "lstm"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "lstm"), lambda recipe: recipe.model.kind == "mamba2", "model.kind mamba2 has no LSTM"),
    UnusedOption(("quant", "keep_float"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "sensitivity"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "loss_budget"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "qat"), lambda recipe: recipe.quant.method != "qat", "quant.method is not qat"),
    UnusedOption(("quant", "qat", "range_lr"), lambda recipe: recipe.quant.qat.ranges == "observe", "quant.qat.ranges is observe"),
    UnusedOption(
        ("quant", "qat", "schedule", "floor"),
        lambda recipe: recipe.quant.qat.schedule.warmup == recipe.quant.qat.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    UnusedOption(
        ("quant", "prune", "schedule", "floor"),
        lambda recipe: recipe.quant.prune is not None and recipe.quant.prune.schedule.warmup == recipe.quant.prune.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    UnusedOption(
        ("train", "schedule", "floor"),
        lambda recipe: recipe.train.schedule.warmup == recipe.train.schedule.cooldown == 0,
        "warmup and cooldown are both 0",
    ),
    UnusedOption(
        ("train", "patience"),
        lambda recipe: recipe.train.patience is not None and recipe.train.patience >= recipe.train.epochs,
        "training ends after train.epochs, no later",
    ),
    UnusedOption(("validate", "offload_optimizer"), lambda recipe: recipe.device == "cpu", "device is cpu, so there is nowhere to take it"),
    UnusedOption(
        ("validate", "offload_optimizer"),
        lambda recipe: recipe.validate.device == "cpu",
        "validate.device is cpu, so nothing is in its way",
    ),
    UnusedOption(("validate", "device"), lambda recipe: recipe.device == "cpu", "device is cpu, so that validation is there as well"),
)

FORECASTER = register(
    RecipeType(
        schema=Recipe,
        of="a forecaster",
        command="python -m tftq.run",
        key=None,
        unused=_UNUSED,
        not_hashed=(("name",), ("out",), ("data", "cache")),
    )
)
