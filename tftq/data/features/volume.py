"""Volume against its own past, and what a trade costs. Volumes enter as ratios, so that their unit cancels."""

import numpy as np

from tftq.data.features.price import Bars
from tftq.data.features.rolling import Series, deviation, highest, lowest, mean, mean_change, ratio, summed, total

FLOOR = 0.01  # of the mean volume, added before a logarithm: a bar without trades has one


def volume(bars: Bars, window: int) -> tuple[Series, ...]:
    """z-score, log ratio to the mean, share of the newer half, change of on-balance volume, log distance to VWAP.

    Without any volume: 0, 0, the half's share of bars, 0, 0.
    """
    traded = total(bars.volume, window)
    average = traded / window
    half = window // 2
    vwap_less_close = ratio(_paid_less_close(bars, window), traded, 0.0)
    return (
        ratio(-mean_change(bars.volume, window), deviation(bars.volume, window), 0.0),
        np.log(ratio(bars.volume + FLOOR * average, (1 + FLOOR) * average, 1.0)),
        ratio(total(bars.volume, half), traded, half / window),
        ratio(total(np.sign(bars.returns) * bars.volume, window), traded, 0.0),
        -np.log1p(vwap_less_close / bars.close),
    )


def liquidity(bars: Bars, window: int) -> tuple[Series, ...]:
    """Roll's spread, Amihud's illiquidity, Corwin and Schultz' spread, Kyle's lambda, signed volume, autocorrelation.

    Roll (1984) from the covariance of neighbouring returns. Amihud (2002) and Kyle (1985) with volume in means and in root mean squares
    of the window, so that its unit cancels; a bar without trades adds nothing. Corwin and Schultz (2012) from pairs of bars.
    All are 0 while nothing moves or trades.
    """
    returns, size = bars.returns, bars.volume
    neighbours = total(returns * np.r_[0.0, returns[:-1]], window - 1)
    signed = np.sign(returns) * size
    impact = mean(returns * signed, window)
    return (
        2 * np.sqrt(np.maximum(-neighbours / (window - 1), 0)),
        mean(ratio(np.abs(returns), size, 0.0), window) * mean(size, window),
        mean(_corwin_schultz(bars), window),
        ratio(impact, np.sqrt(mean(signed**2, window)), 0.0),
        ratio(total(bars.close_location * size, window), total(size, window), 0.0),
        ratio(neighbours, total(returns**2, window), 0.0),
    )


def _paid_less_close(bars: Bars, window: int) -> Series:
    """Σ volume · (typical price then - close now) over the window."""
    now = bars.close[window - 1 :]
    return summed(window, lambda volume_ago, typical_ago: volume_ago * (typical_ago - now), bars.volume, bars.typical)


def _corwin_schultz(bars: Bars) -> Series:
    two_bars = np.log(highest(bars.high, 2) / lowest(bars.low, 2)) ** 2
    squares = total(bars.log_range**2, 2)
    root = 3 - 2 * np.sqrt(2)
    alpha = (np.sqrt(2 * squares) - np.sqrt(squares)) / root - np.sqrt(two_bars / root)
    return np.maximum(2 * np.tanh(alpha / 2), 0)
