"""Find the members of an ensemble before any is loaded, and check that they can run on the same bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tftq.data.files import duration
from tftq.ensemble.member import Member, open_member, planned_bytes
from tftq.ensemble.recipe import EnsembleRecipe
from tftq.errors import EnsembleError

SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True)
class Prepared:
    """Members before any is loaded, and their common properties.

    Attributes:
        members: in the recipe's order.
        planned: member -> resident bytes.
        step: between bars, in nanoseconds.
        time_zone: of the clock columns; None is UTC.
        trained_until: the time of the last bar that any was trained on, in nanoseconds UTC, as far as their files state it.
        unknown: members whose files do not name it.
        notes: notes for the user.
    """

    members: list[Member]
    planned: Mapping[str, int]
    step: int
    time_zone: str | None
    trained_until: int | None
    unknown: list[str]
    notes: list[str]

    @property
    def lookback(self) -> int:
        """Return the longest lookback of any member."""
        return max(member.interface.lookback for member in self.members)


def prepare(recipe: EnsembleRecipe) -> Prepared:
    """Find the members and check that they agree on the bars; load none.

    Raises:
        EnsembleError: some cannot serve, each on a line, they need different bars, or the memory of one cannot be measured.
    """
    members = _open_members(recipe)
    own = [member for member in members if member.interface.step is not None]
    symbol = recipe.data.symbol
    notes = [
        f"{member.name} was trained on {member.interface.symbol or 'all contracts of its file'}, these are {symbol or 'all of them'}"
        for member in own
        if member.interface.symbol != symbol
    ]
    ends = {member.name: member.interface.trained_until for member in members}
    if unknown := [name for name, end in ends.items() if end is None]:
        notes.append(f"when training ended is not said by the file of {', '.join(unknown)}")
    step, time_zone = _common_step(recipe, own), _common_time_zone(recipe, own)
    planned = {member.name: planned_bytes(member, notes.append) for member in members}
    trained_until = max((end for end in ends.values() if end is not None), default=None)
    return Prepared(members, planned, step, time_zone, trained_until, unknown, notes)


def _open_members(recipe: EnsembleRecipe) -> list[Member]:
    members, refused = [], []
    for name, part in recipe.members.items():
        try:
            members.append(open_member(name, part, threads=recipe.threads // recipe.at_once, shared=recipe.memory.shared))
        except EnsembleError as error:
            refused.append(str(error))
    if refused:
        raise EnsembleError("\n".join(refused))
    return members


def _common_step(recipe: EnsembleRecipe, own: Sequence[Member]) -> int:
    """Find the time between bars in nanoseconds, of members whose columns are made from bars."""
    steps = {member.name: member.interface.step for member in own if member.interface.step is not None}
    if recipe.data.step_s is not None:
        steps = {"data.step_s": round(recipe.data.step_s * SECOND), **steps}
    if not steps:
        raise EnsembleError("no member says how far apart its bars are; say it with data.step_s, as 60 for bars of a minute")
    if len(set(steps.values())) > 1:
        raise EnsembleError(f"one step between bars is wanted; found: {_listed({name: duration(step) for name, step in steps.items()})}")
    return next(iter(steps.values()))


def _common_time_zone(recipe: EnsembleRecipe, own: Sequence[Member]) -> str | None:
    zones = {member.name: member.interface.time_zone for member in own} or {"data": recipe.data.time_zone}
    if len({zone or "UTC" for zone in zones.values()}) > 1:
        clocks = _listed({name: zone or "UTC" for name, zone in zones.items()})
        raise EnsembleError(f"one clock for the calendar columns is wanted; members were trained with that of: {clocks}")
    return next(iter(zones.values()))


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
