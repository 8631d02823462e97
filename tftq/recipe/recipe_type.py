"""A type of recipe: the schema of its documents, the key by which they are known, and which of its options can be without effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tftq.recipe.fields import Section
from tftq.recipe.yaml import KeyPath

Document = TypeVar("Document", bound=Section)


class Idle(NamedTuple, Generic[Document]):
    """An option that has no effect while something holds of the recipe, and why."""

    key: KeyPath
    when: Callable[[Document], bool]
    reason: str


@dataclass(frozen=True)
class RecipeType(Generic[Document]):
    """One type of recipe.

    Attributes:
        schema: of its documents.
        of: what it describes, as "a forecaster".
        command: what runs it.
        key: the top-level key of such a document; None for the type of documents that have the key of no other.
        idle: the options that can be without effect; they are warned of and left out of the resolved recipe.
        beside: options that change nothing of what a run has computed, as where it writes; it may be resumed with others.
    """

    schema: type[Document]
    of: str
    command: str
    key: str | None
    idle: tuple[Idle[Document], ...] = ()
    beside: tuple[KeyPath, ...] = (("name",), ("out",))


REGISTERED: list[RecipeType[Any]] = []  # what lies above this package adds its own; `tftq.kinds` imports them all


def register(recipe_type: RecipeType[Document]) -> RecipeType[Document]:
    """Let documents of a type be read; returns the type."""
    REGISTERED.append(recipe_type)
    return recipe_type
