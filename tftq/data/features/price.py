"""Returns, candles and the spread of prices. Prices enter as logarithms, so that nothing depends on their level."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tftq.data.features.rolling import Series, Table, Windows, aligned, lags, mean, ratio

PAD = 64  # flat bars in front of a segment: a bar without enough past sees a market that stood still


@dataclass(frozen=True)
class Bars:
    """The bars of one segment behind `pad` flat ones, with the quantities that several features share.

    Args:
        open, high, low, close, volume: float64 [pad + bars].
        age: how many bars of the segment come before these.
        pad: flat bars in front of them.
    """

    open: Series
    high: Series
    low: Series
    close: Series
    volume: Series
    age: int
    pad: int

    @classmethod
    def padded(cls, columns: dict[str, Series], age: int) -> "Bars":
        """Prepend a flat past at the first open, with the first bar's volume; none where the bars have a past of their own."""
        first = columns["open"][0]
        before = {name: first for name in columns} | {"volume": columns["volume"][0]}
        pad = 0 if age else PAD
        return cls(age=age, pad=pad, **{name: np.r_[np.full(pad, before[name]), column] for name, column in columns.items()})

    @cached_property
    def log_close(self) -> Series:
        """Return the logarithm of the close."""
        return np.log(self.close)

    @cached_property
    def returns(self) -> Series:
        """Return the log return since the bar before; exactly 0 where the close did not move."""
        result = np.zeros_like(self.close)
        result[1:] = np.diff(self.log_close)
        return result

    @cached_property
    def log_range(self) -> Series:
        """Return log(high / low)."""
        return np.log(self.high / self.low)

    @cached_property
    def true_range(self) -> Series:
        """Return the bar's range, the close before it included, in price."""
        before = np.r_[self.close[0], self.close[:-1]]
        return np.maximum(self.high, before) - np.minimum(self.low, before)

    @cached_property
    def typical(self) -> Series:
        """Return (high + low + close) / 3."""
        return (self.high + self.low + self.close) / 3

    @cached_property
    def close_location(self) -> Series:
        """Return the close's position in the bar: -1 at the low, 1 at the high, 0 in a flat bar."""
        return ratio(2 * self.close - self.high - self.low, self.high - self.low, 0.0)


def log_return(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute log returns over the windows."""
    count = max(windows) + 1
    return (aligned(bars.log_close[count - 1 :] - lags(bars.log_close, count)[np.array(windows)], count),)


def candle(bars: Bars) -> tuple[Series, ...]:
    """Compute body, shadows, range and gap of the bar, as logarithms of price ratios and as shares."""
    top, bottom = np.maximum(bars.open, bars.close), np.minimum(bars.open, bars.close)
    before = np.r_[bars.close[0], bars.close[:-1]]
    return (
        np.log(bars.close / bars.open),
        np.log(bars.high / top),
        np.log(bottom / bars.low),
        bars.log_range,
        np.log(bars.open / before),
        np.log1p(bars.true_range / bars.close),
        bars.close_location,
        ratio(top - bottom, bars.high - bars.low, 0.0),
        np.sign(bars.close - bars.open),
    )


def volatility(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute volatility per bar after Parkinson (1980), Garman and Klass (1980), Rogers and Satchell (1991), and of closes."""
    body = np.log(bars.close / bars.open)
    upper, lower = np.log(bars.high / bars.close), np.log(bars.low / bars.close)
    garman_klass = 0.5 * bars.log_range**2 - (2 * np.log(2) - 1) * body**2
    rogers_satchell = upper * np.log(bars.high / bars.open) + lower * np.log(bars.low / bars.open)
    return (
        np.sqrt(mean(bars.log_range**2, windows) / (4 * np.log(2))),
        np.sqrt(mean(np.maximum(garman_klass, 0), windows)),
        np.sqrt(mean(rogers_satchell, windows)),
        np.sqrt(mean(bars.returns**2, windows)),
    )


def moments(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute bipower variation (Barndorff-Nielsen and Shephard 2004), semivariances, skewness and excess kurtosis of returns.

    All moments are about zero, since a mean return per bar is noise; skewness and excess kurtosis are 0 while nothing moves.
    """
    returns = bars.returns
    size = np.abs(returns)
    pairs = mean(size * np.r_[0.0, size[:-1]], tuple(window - 1 for window in windows))
    second, third, fourth = (mean(returns**power, windows) for power in (2, 3, 4))
    return (
        np.sqrt(np.pi / 2 * pairs),
        np.sqrt(mean(np.maximum(returns, 0) ** 2, windows)),
        np.sqrt(mean(np.minimum(returns, 0) ** 2, windows)),
        ratio(third, second**1.5, 0.0),
        ratio(fourth, second**2, 3.0) - 3,
    )


def average_true_range(bars: Bars, windows: Windows) -> tuple[Table, ...]:
    """Compute the mean true range over the close."""
    return (mean(bars.true_range, windows) / bars.close,)
