"""A type of recipe: the schema of its documents, the key that identifies them, and the options that can be without effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tftq.recipe.fields import Section
from tftq.recipe.yaml import KeyPath

Document = TypeVar("Document", bound=Section)


class UnusedOption(NamedTuple, Generic[Document]):
    """An option that has no effect in recipes that meet a condition, and the reason."""

    key: KeyPath
    when: Callable[[Document], bool]
    reason: str


@dataclass(frozen=True)
class RecipeType(Generic[Document]):
    """One type of recipe.

    Attributes:
        schema: of its documents.
        of: the subject it describes, such as "a forecaster".
        command: the command that runs it.
        key: the top-level key that identifies such a document; None for the type of all documents without such a key.
        unused: the options that can be without effect; each gives a warning and is left out of the resolved recipe.
        not_hashed: options that do not change what a run computes, such as where it writes; a run may be resumed with other values.
    """

    schema: type[Document]
    of: str
    command: str
    key: str | None
    unused: tuple[UnusedOption[Document], ...] = ()
    not_hashed: tuple[KeyPath, ...] = (("name",), ("out",))


REGISTERED: list[RecipeType[Any]] = []  # packages above this one add theirs; `tftq.kinds` imports them all


def register(recipe_type: RecipeType[Document]) -> RecipeType[Document]:
    """Add a type to those that `load_document` reads; returns the type."""
    REGISTERED.append(recipe_type)
    return recipe_type
