"""The state of a run between two bars; a run resumed from it gives the answers of an uninterrupted one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tftq.ensemble.ensemble import Ensemble
from tftq.ensemble.market import Market
from tftq.ensemble.member import Member
from tftq.errors import EnsembleError
from tftq.io import written_whole

FILE = "state.npz"
FORMAT = 5  # of a state's content: increased whenever that changes


@dataclass(frozen=True)
class Saved:
    """A state read from its file.

    Attributes:
        notes: values other than arrays: rows written, counters.
        arrays: the market's and the members', by `<owner>/<name>`.
    """

    notes: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def newest(self) -> int | None:
        """Return the time of the newest bar, in nanoseconds UTC; None where there was none."""
        market = self.of("market")
        return int(market["time"]) if market["segment"] >= 0 else None

    def of(self, owner: str) -> dict[str, np.ndarray]:
        """Return the arrays of one owner, by name."""
        begin = f"{owner}/"
        return {key.removeprefix(begin): value for key, value in self.arrays.items() if key.startswith(begin)}


def save(folder: Path, market: Market, ensemble: Ensemble, **notes: Any) -> None:
    """Write the state after a bar atomically; one file, arrays and JSON, no pickle.

    Args:
        folder: of the run.
        market, ensemble: after the bar.
        notes: further values to keep, as plain types.
    """
    arrays: dict[str, Any] = {f"market/{key}": np.asarray(value) for key, value in market.state().items()}
    for member in ensemble.members:
        arrays |= {f"member.{member.name}/{key}": value for key, value in member.state().items()}
    document = {"format": FORMAT, "members": _hashes(ensemble), "ensemble": ensemble.state(), **notes}
    with written_whole(folder / FILE) as part, part.open("wb") as file:
        np.savez(file, notes=np.array(json.dumps(document)), **arrays)


def read(folder: Path) -> Saved | None:
    """Read the state of a run; None where it stopped before the first was written.

    Raises:
        EnsembleError: it cannot be read, or is of another version.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        notes = json.loads(str(arrays.pop("notes")))
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise EnsembleError(f"{path}: cannot be read ({error}); begin anew in another out=...") from error
    if notes.get("format") != FORMAT:
        raise EnsembleError(f"{path}: was written by another version of tftq; use that one, or begin anew in another out=...")
    return Saved(notes, arrays)


def restore(saved: Saved, market: Market, ensemble: Ensemble) -> None:
    """Resume from a state.

    Args:
        saved: the state.
        market, ensemble: before the first bar; they are changed.

    Raises:
        EnsembleError: it belongs to other models.
    """
    then, now = saved.notes["members"], _hashes(ensemble)
    changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if changed:
        raise EnsembleError(f"the state is of other models than those there are now: {', '.join(changed)}; begin anew in another out=...")
    market.restore(saved.of("market"))
    members: Sequence[Member] = ensemble.members
    for member in members:
        member.restore(saved.of(f"member.{member.name}"))
    ensemble.restore(saved.notes["ensemble"])


def _hashes(ensemble: Ensemble) -> dict[str, list[str]]:
    """Member -> of its files."""
    return {member.name: member.hashes for member in ensemble.members}
