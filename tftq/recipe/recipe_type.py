"""A kind of recipe: the schema that its documents follow, what tells them, and which of its options can be without effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tftq.recipe.fields import Section
from tftq.recipe.yaml import KeyPath

Document = TypeVar("Document", bound=Section)


class Idle(NamedTuple, Generic[Document]):
    """An option that has no effect while something holds of the recipe, and why."""

    key: KeyPath
    when: Callable[[Document], bool]
    reason: str


@dataclass(frozen=True)
class Kind(Generic[Document]):
    """One kind of recipe.

    Attributes:
        schema: what its documents may say.
        of: what it is the recipe of, as "a forecaster".
        command: what takes it.
        key: the top-level key that tells such a document; None for the kind of those that have no other kind's.
        idle: the options that can be without effect; they are warned of and left out of the resolved recipe.
        beside: options that change nothing of what a run has computed, as where it writes; it may be resumed with others.
    """

    schema: type[Document]
    of: str
    command: str
    key: str | None
    idle: tuple[Idle[Document], ...] = ()
    beside: tuple[KeyPath, ...] = (("name",), ("out",))
