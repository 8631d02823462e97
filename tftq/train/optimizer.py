"""The optimizer and its param groups; every trainable parameter is in exactly one, known by identity."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn
from torch.optim import AdamW, Optimizer

from tftq.errors import RecipeError
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.adamw8bit import AdamW8bit


class _Place(NamedTuple):
    """The param group that a parameter belongs to."""

    pattern: str | None
    decays: bool

    @property
    def name(self) -> str:
        kind = "weights" if self.decays else "others"
        return kind if self.pattern is None else f"{self.pattern} {kind}"


def build_optimizer(model: nn.Module, recipe: OptimizerRecipe) -> Optimizer:
    """AdamW over every trainable parameter of a model, its moments in FP32 or, by `adamw8bit`, in 8 bits a block of 256.

    Weights decay; biases, norms and other vectors do not. A pattern of `recipe.groups` gives the parameters whose name it matches
    a learning rate of their own; where several match, the first in the recipe counts. Each group stores its `name` and its
    `base_lr`, which the schedule multiplies.

    Args:
        model: the model, its parameters already on their device.
        recipe: learning rates and weight decay.

    Raises:
        RecipeError: a pattern gets no parameter, so that it would have no effect.
    """
    _refuse_idle_patterns(model, recipe)
    groups: dict[_Place, list[nn.Parameter]] = {}
    for parameter, place in _places(model, recipe.groups):
        groups.setdefault(place, []).append(parameter)
    made = [_group(place, parameters, recipe) for place, parameters in groups.items()]
    if recipe.name == "adamw8bit":
        return AdamW8bit(made, lr=recipe.lr)
    return AdamW(made, lr=recipe.lr, fused=True)  # fused: one kernel a group, and no temporary as large as the largest parameter


def _group(place: _Place, parameters: list[nn.Parameter], recipe: OptimizerRecipe) -> dict[str, object]:
    lr = recipe.lr if place.pattern is None else recipe.groups[place.pattern]
    decay = recipe.weight_decay if place.decays else 0.0
    return {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay, "name": place.name}


def _places(model: nn.Module, patterns: Mapping[str, float]) -> Iterator[tuple[nn.Parameter, _Place]]:
    """Each trainable parameter once, shared ones under their first name, with the group it belongs to."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
            yield parameter, _Place(pattern, _decays(model, name, parameter))


def _decays(model: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Whether it is a weight; the biases and norms of many variables at once are no vectors, so that names count too."""
    owner, _, leaf = name.rpartition(".")
    of_norm = type(model.get_submodule(owner)).__name__.endswith("Norm")
    return parameter.ndim >= 2 and not of_norm and not any(word in leaf for word in ("bias", "norm", "intercept"))


def _refuse_idle_patterns(model: nn.Module, recipe: OptimizerRecipe) -> None:
    used = {place.pattern for _, place in _places(model, recipe.groups)}
    idle = [pattern for pattern in recipe.groups if pattern not in used]
    if idle:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise RecipeError(
            f"train.optimizer.groups: {', '.join(map(repr, idle))} gets no parameter, so it has no effect (the first pattern that matches a"
            f" parameter counts); allowed: fnmatch patterns of the names {shown}; correct the pattern or remove it"
        )
