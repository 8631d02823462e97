"""Calendar columns: features of any time, past or future, from the clock alone."""

from collections.abc import Callable, Sequence

import numpy as np

from tftq.data.files import wall_clock

DAY = 86_400_000_000_000  # nanoseconds


def _date(wall: np.ndarray, unit: str) -> np.ndarray:
    return wall.astype("datetime64[ns]").astype(f"datetime64[{unit}]")


def _share_of(wall: np.ndarray, unit: str) -> np.ndarray:
    begin = _date(wall, unit)
    start = begin.astype("datetime64[ns]").astype(np.int64)
    end = (begin + 1).astype("datetime64[ns]").astype(np.int64)
    return (wall - start) / (end - start)


# The phase, in [0, 1), of each cycle at nanoseconds of the wall clock. `weekday` and `month` go in whole steps.
# 1970-01-01 was a Thursday, so that Monday begins three days earlier.
PHASES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "minute": lambda wall: wall % (DAY // 24) / (DAY // 24),
    "hour": lambda wall: wall % DAY / DAY,
    "weekday": lambda wall: (wall // DAY + 3) % 7 / 7,
    "week": lambda wall: (wall + 3 * DAY) % (7 * DAY) / (7 * DAY),
    "day_of_month": lambda wall: _share_of(wall, "M"),
    "day_of_year": lambda wall: _share_of(wall, "Y"),
    "month": lambda wall: _date(wall, "M").astype(np.int64) % 12 / 12,
}


def circle(wall: np.ndarray, cycle: str, harmonic: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Compute sine and cosine of a cycle's phase, so that its end meets its beginning.

    Args:
        wall: int64 nanoseconds of the wall clock [rows].
        cycle: a name in `PHASES`.
        harmonic: how often the pair goes round in one cycle.

    Returns:
        float64 [rows] twice.
    """
    angle = 2 * np.pi * harmonic * PHASES[cycle](wall)
    return np.sin(angle), np.cos(angle)


def calendar_columns(times: np.ndarray, time_zone: str | None, cycles: Sequence[str]) -> np.ndarray:
    """Compute the calendar columns of a table, a sine and a cosine for each cycle.

    Args:
        times: int64 nanoseconds UTC [rows].
        time_zone: whose clock; None is UTC.
        cycles: names in `PHASES`.

    Returns:
        float64 [rows, 2 · cycles].
    """
    wall = wall_clock(times, time_zone)
    waves = [wave for cycle in cycles for wave in circle(wall, cycle)]
    return np.stack(waves, axis=1) if waves else np.empty((len(times), 0))
