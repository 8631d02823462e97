"""The generator of `test_data/`: python -m tftq.data.synthetic FOLDER writes the same bytes every time."""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

TICK = 0.25
MINUTE, HOUR = 60_000_000_000, 3_600_000_000_000  # nanoseconds
BARS_BEGIN = np.datetime64("2024-01-08T05:20", "ns").astype(np.int64)  # a Monday; New York opens at 14:30, CME closes at 22:00
TABLE_BEGIN = np.datetime64("2024-01-01T00:00", "ns").astype(np.int64)  # a Monday


def activity(times: np.ndarray) -> np.ndarray:
    """Compute the market's activity by time of day: near 1 at night, a step up in Europe's morning, a U over New York's session.

    Args:
        times: int64 nanoseconds UTC [rows].

    Returns:
        float64 [rows], a factor on volatility; volume goes with its square and more.
    """
    hour = times % (24 * HOUR) / HOUR
    europe = 0.6 / (1 + np.exp(-(hour - 7.5) * 3))
    session = 1 / (1 + np.exp(-(hour - 14.5) * 30)) / (1 + np.exp((hour - 21) * 30))
    u_shape = 1.2 + 1.5 * np.exp(-np.abs(hour - 14.5) / 0.7) + np.exp(-np.abs(hour - 21) / 0.5)
    return 0.7 + europe + session * u_shape


def bars(count: int = 1000, seed: int = 20240108) -> pa.Table:
    """Generate one-minute bars that imitate ES: a random walk in ticks with clustered volatility and an intraday shape.

    Args:
        count: how many bars.
        seed: of the random numbers.

    Returns:
        Columns ts_event, open, high, low, close, volume and symbol; unbroken.
    """
    random = np.random.default_rng(seed)
    times = BARS_BEGIN + MINUTE * np.arange(count)
    clustering = np.empty(count)
    state = 0.0
    for index, shock in enumerate(random.normal(0, 0.12, count)):
        state = 0.95 * state + shock
        clustering[index] = state
    sigma = 1.1 * activity(times) * np.exp(clustering)  # ticks per bar
    trades = 12  # prices within a bar
    moves = random.normal(0, 1, (count, trades)) * (sigma / np.sqrt(trades))[:, None]
    path = 19_000 + np.cumsum(moves).reshape(count, trades)  # ticks; 19,000 are 4,750 points
    prices = np.round(path) * TICK
    size = np.abs(moves).sum(axis=1) / sigma / np.sqrt(trades)
    volume = np.ceil(90 * activity(times) ** 2 * np.exp(2 * clustering + random.normal(0, 0.4, count)) * size).astype(np.int64)
    return pa.table(
        {
            "ts_event": pa.array(times).cast(pa.timestamp("ns", tz="UTC")),
            "open": prices[:, 0],
            "high": prices.max(axis=1),
            "low": prices.min(axis=1),
            "close": prices[:, -1],
            "volume": volume,
            "symbol": pa.array(["ES_FUT"] * count),
        }
    )


def structured(count: int = 4000, seed: int = 20240101) -> pa.Table:
    """Generate hourly rows of known structure: two seasonalities, a strong known covariate, a weak observed one and noise.

    Args:
        count: how many hours.
        seed: of the random numbers.

    Returns:
        Columns time, sales, promotion and visits, as `test_data/README.md` defines them.
    """
    random = np.random.default_rng(seed)
    hour = np.arange(count)
    promotion = np.repeat(random.integers(0, 5, count) / 4, random.integers(4, 13, count))[:count]
    visits = np.empty(count)
    state = 0.0
    for index, shock in enumerate(random.normal(0, 0.3, count)):
        state = 0.95 * state + shock
        visits[index] = state
    visits = visits.round(3)
    sales = season(hour) + 40 * promotion + 2 * visits + random.normal(0, 1, count)
    return pa.table(
        {
            "time": pa.array(TABLE_BEGIN + HOUR * hour).cast(pa.timestamp("ns", tz="UTC")),
            "sales": sales.round(3),
            "promotion": promotion,
            "visits": visits,
        }
    )


def season(hour: np.ndarray) -> np.ndarray:
    """Compute the level of `structured` with its daily and weekly seasonalities at hours since its beginning."""
    return 100 + 6 * np.sin(2 * np.pi * hour / 24) + 4 * np.sin(2 * np.pi * hour / 168)


def write(folder: Path) -> None:
    """Write both files into an existing folder."""
    pyarrow.parquet.write_table(bars(), folder / "ES_FUT_small.parquet", compression="zstd")
    pyarrow.parquet.write_table(structured(), folder / "structured.parquet", compression="zstd")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an existing folder, such as test_data")
    write(parser.parse_args().folder)
