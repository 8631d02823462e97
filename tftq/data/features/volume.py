"""Features of volume against its own past, and of liquidity. Volumes enter as ratios, so that their unit cancels."""

import numpy as np

from tftq.data.features.price import Bars
from tftq.data.features.rolling import (
    Series,
    Table,
    Windows,
    column,
    deviation,
    highest,
    lags,
    lowest,
    mean,
    mean_change,
    ratio,
    sums,
    total,
)

FLOOR = 0.01  # of the mean volume, added before a logarithm: a bar without trades has one


def volume(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute z-score, log ratio to the mean, share of the newer half, change of on-balance volume, log distance to VWAP.

    Without any volume: 0, 0, the half's share of bars, 0, 0.
    """
    traded = total(bars.volume, windows)
    average = traded / column(windows)
    halves = tuple(window // 2 for window in windows)
    vwap_less_close = ratio(_paid_less_close(bars, windows), traded, 0.0)
    return (
        ratio(-mean_change(bars.volume, windows), deviation(bars.volume, windows), 0.0),
        np.log(ratio(bars.volume + FLOOR * average, (1 + FLOOR) * average, 1.0)),
        ratio(total(bars.volume, halves), traded, column(halves) / column(windows)),
        ratio(total(np.sign(bars.returns) * bars.volume, windows), traded, 0.0),
        -np.log1p(vwap_less_close / bars.close),
    )


def liquidity(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute Roll's spread, Amihud's illiquidity, Corwin and Schultz' spread, Kyle's lambda, signed volume, autocorrelation.

    Roll (1984) from the covariance of neighbouring returns. Amihud (2002) and Kyle (1985) with volume in means and in root mean squares
    of the window, so that its unit cancels; a bar without trades adds nothing. Corwin and Schultz (2012) from pairs of bars.
    All are 0 while nothing moves or trades.
    """
    returns, size = bars.returns, bars.volume
    pairs = tuple(window - 1 for window in windows)
    neighbours = total(returns * np.r_[0.0, returns[:-1]], pairs)
    signed = np.sign(returns) * size
    impact = mean(returns * signed, windows)
    return (
        2 * np.sqrt(np.maximum(-neighbours / column(pairs), 0)),
        mean(ratio(np.abs(returns), size, 0.0), windows) * mean(size, windows),
        mean(_corwin_schultz(bars), windows),
        ratio(impact, np.sqrt(mean(signed**2, windows)), 0.0),
        ratio(total(bars.close_location * size, windows), total(size, windows), 0.0),
        ratio(neighbours, total(returns**2, windows), 0.0),
    )


def _paid_less_close(bars: Bars, windows: Windows) -> Table:
    """Compute Σ volume · (typical price then - close now) over the windows."""
    count = max(windows)
    return sums(lags(bars.volume, count) * (lags(bars.typical, count) - bars.close[count - 1 :]), windows)


def _corwin_schultz(bars: Bars) -> Series:
    two = (2,)
    two_bars = np.log(highest(bars.high, two)[0] / lowest(bars.low, two)[0]) ** 2
    squares = total(bars.log_range**2, two)[0]
    root = 3 - 2 * np.sqrt(2)
    alpha = (np.sqrt(2 * squares) - np.sqrt(squares)) / root - np.sqrt(two_bars / root)
    return np.maximum(2 * np.tanh(alpha / 2), 0)
