"""Recipes of the networks: a Temporal Fusion Transformer, a Mamba-2."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from tftq.recipe.fields import Count, Section, contradiction, frozen, whole


def _about_the_median(quantiles: tuple[float, ...]) -> tuple[float, ...]:
    increasing = all(low < high for low, high in pairwise(quantiles))
    if not increasing or len(quantiles) % 2 == 0 or 0.5 not in quantiles:
        raise contradiction(f"found {list(quantiles)}; allowed: an odd count, strictly increasing, 0.5 among them")
    return quantiles


Dropout = Annotated[float, Ge(0), Lt(1)]
Quantiles = Annotated[tuple[Annotated[float, Gt(0), Lt(1)], ...], BeforeValidator(frozen), AfterValidator(_about_the_median)]


class TftRecipe(Section):
    """A Temporal Fusion Transformer."""

    kind: Literal["tft"] = Field(default="tft", exclude=True)  # the default is not written
    form: Literal["knots", "folded", "paper"] = "knots"
    hidden: Count = 64
    heads: Count = 4
    lstm_layers: Count = 1
    dropout: Dropout = 0.1
    quantiles: Quantiles = (0.1, 0.5, 0.9)
    knots: Annotated[int, BeforeValidator(whole), Ge(2)] = 32  # of each variable's curve, where form is knots
    gates: Literal["own", "shared"] = "own"  # whose the weight of a curve's gate is: shared ones are a sixth of the parameters

    @field_validator("heads")
    @classmethod
    def _divides_hidden(cls, heads: int, info: ValidationInfo) -> int:
        hidden = info.data.get("hidden", heads)
        if hidden % heads:
            raise contradiction(f"{heads} heads do not divide model.hidden {hidden}; allowed: {_divisors(hidden)}")
        return heads

    @field_validator("gates")
    @classmethod
    def _not_as_published(cls, gates: str, info: ValidationInfo) -> str:
        if gates == "shared" and info.data.get("form") == "paper":
            raise contradiction("shared gates are not those of the published model; allowed with model.form paper: own")
        return gates


class Mamba2Recipe(Section):
    """A Mamba-2: blocks of selective state spaces."""

    kind: Literal["mamba2"]
    hidden: Count = 64  # width between the blocks
    layers: Count = 2
    state: Count = 64  # numbers that each channel of a block keeps of the rows before
    expand: Count = 2  # width within a block, in widths between them
    head_dim: Count = 32  # channels with a decay in common; divides expand * hidden
    conv: Count = 4  # rows of the short convolution
    chunk: Count = 128  # rows that are computed as one product; the result is the same
    dropout: Dropout = 0.1
    quantiles: Quantiles = (0.1, 0.5, 0.9)

    @field_validator("head_dim")
    @classmethod
    def _divides_the_inner_width(cls, head_dim: int, info: ValidationInfo) -> int:
        inner = info.data.get("expand", head_dim) * info.data.get("hidden", head_dim)
        if inner % head_dim:
            raise contradiction(f"{head_dim} does not divide model.expand * model.hidden {inner}; allowed: {_divisors(inner)}")
        return head_dim


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _kind(value: Any) -> str:
    """Return `kind` of a section of a file, or of a model of it; tft by default."""
    return str(value.get("kind", "tft") if isinstance(value, dict) else getattr(value, "kind", "tft"))


ModelRecipe = Annotated[Annotated[TftRecipe, Tag("tft")] | Annotated[Mamba2Recipe, Tag("mamba2")], Discriminator(_kind)]
