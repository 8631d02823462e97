"""Runs of ensembles without a word, and what they leave."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tftq.console import Console
from tftq.ensemble.job import run
from tftq.ensemble.recipe import EnsembleRecipe


def as_json(columns: dict[str, np.ndarray], **more: Any) -> list[str]:
    """Bars as lines of JSON."""
    return [
        json.dumps({**{name: values[i].item() for name, values in columns.items()}, **more}) + "\n" for i in range(len(columns["close"]))
    ]


def recipe_of(folder: Path, data: Path | str, members: dict[str, Any], **options: Any) -> EnsembleRecipe:
    """A recipe that writes to `folder`; members: name -> path, or all of its options."""
    parts = {name: part if isinstance(part, dict) else {"path": part} for name, part in members.items()}
    given = data if isinstance(data, dict) else {"path": data}
    return EnsembleRecipe.model_validate({"name": "test", "out": folder, "members": parts, "data": given, **options})


def quietly(recipe: EnsembleRecipe, *, lines: Iterable[str] | None = None, resume: bool = False) -> tuple[dict[str, Any], str, str]:
    """Run; the summary, what was told, and the lines of answers."""
    console, answers = Console(file=io.StringIO(), width=200), io.StringIO()
    summary = run(recipe, resume=resume, console=console, lines=lines, answers=answers).as_dict()
    assert isinstance(console.file, io.StringIO)
    return summary, console.file.getvalue(), answers.getvalue()


def answers_of(folder: Path) -> pa.Table:
    """What a run wrote."""
    return pq.read_table(folder / "answers.parquet")


def forecasts_of(table: pa.Table, member: str) -> np.ndarray:
    """A member's forecasts, float32 [bars with one, horizon, levels]."""
    rows = table.filter(pc.and_(pc.equal(table["member"], member), pc.greater(table["step"], 0)))
    return np.stack([rows[name].to_numpy() for name in ("P10", "P50", "P90")], axis=-1).reshape(-1, pc.max(rows["step"]).as_py(), 3)
