"""The optimizer and its param groups; every trainable parameter is in exactly one, known by identity."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import AdamW, Optimizer

from tftq.errors import NonFiniteError, RecipeError
from tftq.quant.quantizers import learned_ranges
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.adamw8bit import AdamW8bit
from tftq.train.oom import explain_out_of_memory

RANGES = "learned ranges"  # the param group of learned quantization ranges


class _Place(NamedTuple):
    """The param group that a parameter belongs to."""

    pattern: str | None
    decays: bool

    @property
    def name(self) -> str:
        if self.pattern == RANGES:
            return RANGES
        members = "weights" if self.decays else "others"
        return members if self.pattern is None else f"{self.pattern} {members}"


def build_optimizer(model: nn.Module, recipe: OptimizerRecipe, *, range_lr: float | None = None) -> Optimizer:
    """Build AdamW over every trainable parameter of a model, its moments in FP32 or, by `adamw8bit`, in 8 bits in blocks of 256.

    Weights decay; biases, norms and other vectors do not. A pattern of `recipe.groups` gives the parameters whose name it matches
    a learning rate of their own; where several match, the first in the recipe counts. Each group stores its `name` and its
    `base_lr`, which the schedule multiplies.

    Args:
        model: the model, its parameters already on their device.
        recipe: learning rates and weight decay.
        range_lr: the learning rate of the model's learned ranges, which are a group of their own; None where it has none.

    Raises:
        RecipeError: a pattern matches no parameter, so that it would have no effect.
    """
    _refuse_idle_patterns(model, recipe)
    groups: dict[_Place, list[nn.Parameter]] = {}
    ranges = [] if range_lr is None else learned_ranges(model)
    for parameter, place in _places(model, recipe.groups, ranges):
        groups.setdefault(place, []).append(parameter)
    rates = recipe.groups if range_lr is None else {**recipe.groups, RANGES: range_lr}
    made = [_group(place, parameters, recipe, rates) for place, parameters in groups.items()]
    if recipe.name == "adamw8bit":
        return AdamW8bit(made, lr=recipe.lr)
    return AdamW(made, lr=recipe.lr, fused=True)  # fused: one kernel per group, and no temporary as large as the largest parameter


def step_optimizer(optimizer: Optimizer, scaler: GradScaler, where: str) -> bool:
    """Step an optimizer and clear its gradients.

    Args:
        optimizer: its parameters have unscaled gradients.
        scaler: of the loss.
        where: the place in the training, for messages.

    Returns:
        Whether the step was applied: a fused optimizer hides a skipped one, the scale does not.

    Raises:
        OutOfMemoryError: the optimizer's state does not fit.
        NonFiniteError: FP16 gradients overflow at any scale.
    """
    before = scaler.get_scale()
    with explain_out_of_memory(
        f"{where}: out of memory in the optimizer's step, which needs the same however few windows are forwarded: the model, its "
        "gradients and the optimizer's state do not fit together; use train.optimizer.name adamw8bit, or lower model.hidden"
    ):
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    after = scaler.get_scale()
    if after < 1:
        raise NonFiniteError(
            f"{where}: FP16 gradients are not finite even unscaled; use train.precision bf16 or fp32, or a lower train.optimizer.lr"
        )
    return after >= before


def _group(place: _Place, parameters: list[nn.Parameter], recipe: OptimizerRecipe, rates: Mapping[str, float]) -> dict[str, object]:
    lr = recipe.lr if place.pattern is None else rates[place.pattern]
    decay = recipe.weight_decay if place.decays else 0.0
    return {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay, "name": place.name}


def _places(model: nn.Module, patterns: Iterable[str], ranges: Iterable[nn.Parameter]) -> Iterator[tuple[nn.Parameter, _Place]]:
    """List each trainable parameter once, shared ones under their first name, with its group."""
    learned = set(ranges)  # parameters compare by identity
    for name, parameter in model.named_parameters():
        if parameter in learned:
            yield parameter, _Place(RANGES, decays=False)
        elif parameter.requires_grad:
            pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
            yield parameter, _Place(pattern, _decays(model, name, parameter))


def _decays(model: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a weight; stacked biases and norms of variables are no vectors, so names count too."""
    owner, _, leaf = name.rpartition(".")
    of_norm = type(model.get_submodule(owner)).__name__.endswith("Norm")
    return parameter.ndim >= 2 and not of_norm and not any(word in leaf for word in ("bias", "norm", "intercept"))


def _refuse_idle_patterns(model: nn.Module, recipe: OptimizerRecipe) -> None:
    used = {place.pattern for _, place in _places(model, recipe.groups, ())}
    idle = [pattern for pattern in recipe.groups if pattern not in used]
    if idle:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise RecipeError(
            f"train.optimizer.groups: {', '.join(map(repr, idle))} gets no parameter, so it has no effect (the first pattern that matches a"
            f" parameter counts); allowed: fnmatch patterns of the names {shown}; correct the pattern or remove it"
        )
