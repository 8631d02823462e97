"""Names of the quantiles of forecasts, as columns of files and in tables."""

import re

_NAME = re.compile(r"P(\d+(?:\.\d+)?(?:e-\d+)?)")


def quantile_name(level: float) -> str:
    """Name a quantile by its level between 0 and 1: P10, P50, P97.5."""
    return f"P{100 * level:.12g}"  # fewer digits than a float has, so that 0.29 is P29


def level_of(name: str) -> float | None:
    """Return the level, between 0 and 1, of a quantile by its name; None for another name."""
    found = _NAME.fullmatch(name)
    return None if found is None else float(found[1]) / 100
