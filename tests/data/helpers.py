"""Small inputs for the data tests, and recipes that read them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tftq.recipe.schema import BarsRecipe, TableRecipe

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
MINUTE = 60_000_000_000
BEGIN = 1_704_672_000_000_000_000  # Monday 2024-01-08 00:00 UTC, in nanoseconds


def bar_columns(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Unbroken one-minute bars of a seeded walk in ticks of 0.25, flat bars and bars without volume included."""
    random = np.random.default_rng(seed)
    path = 4000 + 0.25 * np.cumsum(random.integers(-2, 3, (count, 4)) * random.integers(0, 2, (count, 1)), axis=None).reshape(count, 4)
    return {
        "ts_event": BEGIN + MINUTE * np.arange(count),
        "open": path[:, 0],
        "high": path.max(axis=1),
        "low": path.min(axis=1),
        "close": path[:, 3],
        "volume": random.integers(0, 50, count) * random.integers(0, 2, count),
    }


def take(columns: dict[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    """The same columns at some rows."""
    return {name: values[rows] for name, values in columns.items()}


def write(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns as parquet; returns the path."""
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def bars_recipe(path: Path, **options: Any) -> BarsRecipe:
    """A recipe of bars without warm-up."""
    return BarsRecipe(kind="bars", path=path, **{"warmup": 0, **options})


def table_recipe(path: Path, **options: Any) -> TableRecipe:
    """A recipe of a table with the columns time and y, known x, lookback 4 and horizon 2."""
    defaults = {"time": "time", "target": "y", "known": ["x"], "season": 3, "lookback": 4, "horizon": 2}
    return TableRecipe(kind="table", path=path, **{**defaults, **options})


def table_columns(count: int) -> dict[str, np.ndarray]:
    """Hourly rows: y counts up from 0, x goes in a cycle of 5."""
    hours = np.arange(count)
    return {"time": (BEGIN + 60 * MINUTE * hours).astype("datetime64[ns]"), "y": hours.astype(float), "x": hours % 5 + 0.5}
