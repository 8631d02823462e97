"""Types of options: numbers with bounds, names, paths, and the section that holds options."""

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict
from pydantic_core import PydanticCustomError


def whole(value: Any) -> Any:
    """Convert a float without a fraction to an int, as YAML reads `1e4` as a float; return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: Any) -> Any:
    """Convert YAML 1.1's words for true and false (yes, no, on, off) to a bool; return other values unchanged."""
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def frozen(value: Any) -> Any:
    """Convert a list to a tuple, which is immutable; return other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


def _path(value: Any) -> Any:
    if value == "":
        raise contradiction("found an empty path; allowed: a path")
    if isinstance(value, str) and "\0" in value:
        raise contradiction("found a path with a NUL character; allowed: a path")
    return value


def contradiction(message: str, key: str = "") -> PydanticCustomError:
    """Build the error of an option that contradicts another; `key` is the option's path below the field that is being validated."""
    return PydanticCustomError("contradiction", "{message}", {"message": message, "key": key})


Count = Annotated[int, BeforeValidator(whole), Ge(1), Le(1_000_000)]
Whole = Annotated[int, BeforeValidator(whole), Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Tick = Annotated[Positive, Le(1_000_000)]  # in the price's unit; bounded, so that earnings stay finite
Ticks = Annotated[NotNegative, Le(1_000_000)]
Fraction = Annotated[float, Ge(0), Le(1)]
Switch = Annotated[bool, BeforeValidator(_truth)]
Text = Annotated[str, MinLen(1)]
Names = Annotated[tuple[Text, ...], BeforeValidator(frozen)]
FilePath = Annotated[Path, Strict(False), BeforeValidator(_path)]


def unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Raise an error for duplicate names; return the names."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise contradiction(f"named twice: {', '.join(twice)}; allowed: each name once")
    return names


class Section(BaseModel):
    """A part of a recipe: frozen, without unknown keys, without non-finite numbers; defaults are validated like values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
