"""Judge the answers over a span of bars: hits, forecast risk, and the return of the positions after costs.

A position is taken at the close of its bar and held to the next bar's close. It is a share of a notional that
stays the same (gains are not reinvested), so returns add up. Where a member gave no answer it holds nothing, and at the last bar of a
segment everybody is out: no return is made over a gap, and no forecast is judged over one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tftq.data.files import duration, iso
from tftq.ensemble.answers import MEDIAN
from tftq.ensemble.recipe import BUY_AND_HOLD, NO_CHANGE
from tftq.errors import DataError, TooFewBarsError
from tftq.evaluate.metrics import ForecastMetrics, validation_summary
from tftq.spec.quantiles import level_of

COLUMNS = ("time", "segment", "close", "member", "step", "position")
STRAY = 1.96  # standard errors within which chance stays, 19 times of 20
DAY_NS = 86_400_000_000_000


@dataclass(frozen=True)
class Bars:
    """The answered bars, in order of time.

    Args:
        times: int64 nanoseconds UTC [bars].
        segments: int32 [bars]; equal numbers lie together.
        close: float64 [bars].
    """

    times: np.ndarray
    segments: np.ndarray
    close: np.ndarray

    def __len__(self) -> int:
        return len(self.times)

    @property
    def ahead(self) -> np.ndarray:
        """Count the bars of its segment after each, int64 [bars]."""
        if not len(self):
            return np.zeros(0, np.int64)
        ends = np.flatnonzero(np.r_[np.diff(self.segments) != 0, True])  # the last row of each segment
        rows = np.arange(len(self))
        following: np.ndarray = ends[np.searchsorted(ends, rows)] - rows
        return following

    @property
    def starts(self) -> np.ndarray:
        """Return the first row of each segment."""
        return np.flatnonzero(np.r_[True, np.diff(self.segments) != 0])

    def returns(self, horizon: int) -> np.ndarray:
        """Compute cumulative log returns of the next bars, float64 [bars, horizon]; NaN past the segment's end."""
        steps = np.arange(1, horizon + 1)
        rows = np.minimum(np.arange(len(self))[:, None] + steps, len(self) - 1)  # [bars, horizon]
        return np.where(steps <= self.ahead[:, None], np.log(self.close[rows] / self.close[:, None]), np.nan)


@dataclass(frozen=True)
class Ledger:
    """Returns and costs of holding positions, bar by bar, as shares of the notional; float64 [bars] each.

    Args:
        gross: the return from this bar's close to the next.
        costs: of changing the position at this bar's close.
        changed: by how much the position changed there.
    """

    gross: np.ndarray
    costs: np.ndarray
    changed: np.ndarray

    @property
    def equity(self) -> np.ndarray:
        """Return the sum of returns after costs, up to the next bar's close."""
        sums: np.ndarray = (self.gross - self.costs).cumsum()
        return sums


def drawdowns(equity: np.ndarray) -> np.ndarray:
    """Compute how far equity, float64 [bars], lies below its highest value so far, the beginning (0) included; float64 [bars]."""
    below: np.ndarray = np.maximum.accumulate(np.maximum(equity, 0)) - equity
    return below


def ledger(bars: Bars, position: np.ndarray, cost: float) -> Ledger:
    """Hold positions.

    Args:
        bars: the bars.
        position: float64 [bars], -1 to 1, to hold from each bar's close to the next; NaN is none.
        cost: of changing the position by 1, in the price's unit.
    """
    last = bars.ahead == 0
    held = np.where(last | np.isnan(position), 0.0, position)
    changed = np.abs(np.diff(held, prepend=0.0))  # each segment begins without a position, as the one before ended
    move = np.where(last, 0.0, np.diff(bars.close, append=bars.close[-1]))
    return Ledger(held * move / bars.close, cost * changed / bars.close, changed)


@dataclass(frozen=True)
class Score:
    """The score of one member's answers.

    Args:
        answers: number of answered bars.
        hits: bars after which the price moved to the position's side, and `misses`, to the other side.
        flat: bars without a position, `unmoved`: with one, but the next close was the same; neither hits nor misses.
        gross_return: the sum of returns before costs, as a share of the notional.
        net_return: the same after costs.
        max_drawdown: the largest fall of the equity below its earlier maximum, the beginning included.
        turnover: the sum of all changes of the position: from -1 to 1 is 2.
        trades: bars at which the position changed.
        forecast: risk and coverage of its quantiles as in a run's summary, over the windows whose whole horizon lies in the segment, the
            loss being the mean pinball loss in log returns; None where there is none.
    """

    answers: int
    hits: int
    misses: int
    flat: int
    unmoved: int
    gross_return: float
    net_return: float
    max_drawdown: float
    turnover: float
    trades: int
    forecast: dict[str, Any] | None = None

    @property
    def hit_rate(self) -> float | None:
        """Return the share of hits among hits and misses; None where there is neither."""
        judged = self.hits + self.misses
        return self.hits / judged if judged else None


@dataclass(frozen=True)
class Backtest:
    """The scores of every member and the ensemble, beside buying and holding and the forecast of no change.

    Args:
        bars: the bars that count.
        answered: bool [bars], at which any member answered.
        since: int64 nanoseconds UTC, the last bar of training, and `learned`: number of bars up to it, left out; None where not known.
        unsaid: members without a known date.
        horizon: steps of the longest forecast, 1 where there is none.
        cost_ticks, tick: the cost of changing the position by 1, in ticks, and a tick in the price's unit.
        scores: by member.
        equity: by member, see `Ledger.equity`.
    """

    bars: Bars
    answered: np.ndarray
    since: int | None
    learned: int
    unsaid: tuple[str, ...]
    horizon: int
    cost_ticks: float
    tick: float
    scores: Mapping[str, Score]
    equity: Mapping[str, np.ndarray]

    @property
    def independent_windows(self) -> int:
        """Count the windows of the horizon, after answered bars, that do not overlap and so have independent outcomes."""
        judged = self.answered & (self.bars.ahead > 0)
        return int((np.add.reduceat(judged, self.bars.starts, dtype=np.int64) // self.horizon).sum())

    @property
    def warning(self) -> str:
        """Explain why nothing is proven, with the span and its bars."""
        begin, end = int(self.bars.times[0]), int(self.bars.times[-1])
        judged = max(score.hits + score.misses for score in self.scores.values())
        chance = f"; by chance alone a hit rate over {judged:,} bars strays {STRAY / 2 / math.sqrt(judged):.1%} from 50%" if judged else ""
        windows = f"{_counted(self.independent_windows, 'window')} of {_counted(self.horizon, 'step')} that do not overlap"
        who = "Members" if self.since is None else ", ".join(self.unsaid)
        learned = f" {who} may have been trained on these very bars: nothing says otherwise." if who else ""
        return (
            f"A week of bars proves nothing. These are {(end - begin) / DAY_NS:.1f} days, from {iso(begin)} to {iso(end)}, "
            f"with {windows}{chance}. The next span may be of another kind, and beside {_counted(self.cost_ticks, 'tick')} a change of "
            f"position nothing is paid: no queue, no slippage, no order that is not filled.{learned}"
        )

    def summary(self) -> dict[str, Any]:
        """Return its form in summary.json."""
        return {
            "begin": iso(int(self.bars.times[0])),
            "end": iso(int(self.bars.times[-1])),
            "bars": len(self.bars),
            "segments": len(self.bars.starts),
            "since_ns": self.since,
            "learned_bars_left_out": self.learned,
            "training_end_unsaid": list(self.unsaid),
            "horizon": self.horizon,
            "independent_windows": self.independent_windows,
            "cost_ticks": self.cost_ticks,
            "tick": self.tick,
            "warning": self.warning,
            "scores": {name: {**asdict(score), "hit_rate": score.hit_rate} for name, score in self.scores.items()},
        }


def backtest(table: pa.Table, *, cost_ticks: float, tick: float, since: int | None = None, unsaid: Sequence[str] = ()) -> Backtest:
    """Score answers.

    Args:
        table: a row for each bar, member and step (0 where it gives a position alone): time, segment, close, member, step, position and
            a column for each quantile, as P50, null where there is none; as answers.parquet of a run of the ensemble.
        cost_ticks: of changing the position by 1, in ticks.
        tick: the smallest change of the price, in the price's unit.
        since: int64 nanoseconds UTC, the last bar of training; those after it count. None: not known, and all count.
        unsaid: members without a known date.

    Raises:
        TooFewBarsError: no two bars in a row count.
        DataError: a missing column, two rows that contradict each other about a bar, or a segment with a gap.
    """
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise DataError(f"answers lack the columns {', '.join(missing)}; wanted are {', '.join(COLUMNS)}, and P50 and others of forecasts")
    every = _bars(table)
    learned = 0 if since is None else int(np.searchsorted(every.times, since, side="right"))
    bars = Bars(every.times[learned:], every.segments[learned:], every.close[learned:])
    if not (bars.ahead > 0).any():
        begin = "" if since is None else f" after {iso(since)}, the last of training"
        raise TooFewBarsError(f"no two bars in a row{begin}; give more bars")
    table = table.filter(pa.array(_int64(table["time"]) >= bars.times[0]))

    answers = {name: _Answers.read(part, bars) for name, part in _by_member(table)}
    horizon = max(own.quantiles.shape[1] for own in answers.values()) or 1
    answered = np.logical_or.reduce([np.isfinite(own.position) for own in answers.values()])  # [bars]
    answers |= _baselines(answered, horizon)
    books = {name: ledger(bars, own.position, cost_ticks * tick) for name, own in answers.items()}
    return Backtest(
        bars,
        answered,
        since,
        learned,
        tuple(unsaid),
        horizon,
        cost_ticks,
        tick,
        {name: _score(bars, own, books[name]) for name, own in answers.items()},
        {name: book.equity for name, book in books.items()},
    )


@dataclass(frozen=True)
class _Answers:
    """One member's answers, NaN where there is none.

    Args:
        position: float64 [bars].
        quantiles: float64 [bars, horizon, levels].
        levels: of the quantiles, ascending.
    """

    position: np.ndarray
    quantiles: np.ndarray
    levels: list[float]

    @classmethod
    def read(cls, part: pa.Table, bars: Bars) -> "_Answers":
        """Build the answers from a member's rows; levels and steps that not all of its forecasts have are left out.

        Raises:
            DataError: two rows of one bar and step; 0, a position alone, and 1 are the same step.
        """
        bar = np.searchsorted(bars.times, _int64(part["time"]))
        step = part["step"].to_numpy()
        steps = int(step.max(initial=1))
        places, counts = np.unique(bar * steps + np.maximum(step, 1) - 1, return_counts=True)
        if (counts > 1).any():
            twice, member = divmod(int(places[counts.argmax()]), steps), part["member"][0].as_py()
            time = iso(int(bars.times[twice[0]]))
            raise DataError(f"answers hold {counts.max()} rows of {member} at {time}, step {twice[1] + 1}; keep one of them")
        position = np.full(len(bars), np.nan)
        position[bar[step <= 1]] = part["position"].to_numpy()[step <= 1]
        found = {level: name for name in part.column_names if (level := level_of(name)) is not None}
        levels = sorted(found)
        quantiles = np.full((len(bars), step.max(), len(levels)), np.nan)
        ahead = step > 0
        for place, level in enumerate(levels):
            quantiles[bar[ahead], step[ahead] - 1, place] = part[found[level]].to_numpy()[ahead]
        there = np.isfinite(quantiles)
        forecast = there.any((1, 2))  # [bars]
        kept = np.logical_and.reduce(there[forecast].any(1)) & forecast.any()  # [levels]
        horizon = int(there[forecast][:, :, kept].all(2).sum(1).min(initial=step.max()))
        return cls(position, quantiles[:, :horizon, kept], [level for level, keep in zip(levels, kept, strict=True) if keep])

    def judged(self, bars: Bars) -> dict[str, Any] | None:
        """Measure risk and coverage over the windows whose horizon lies in the segment; None where no forecast has one."""
        horizon = self.quantiles.shape[1]
        outcome = bars.returns(horizon)
        whole = np.isfinite(outcome).all(1) & np.isfinite(self.quantiles).all((1, 2))
        if not self.levels or not whole.any():
            return None
        metrics = ForecastMetrics(self.levels, np.ones(horizon))
        metrics.add(self.quantiles[whole], outcome[whole])
        found = validation_summary(metrics.result())
        interval = {"coverage": found.coverage} if len(self.levels) > 1 else {}
        return {"windows": found.windows, "horizon": horizon, "loss": found.loss, "q_risk": found.q_risk, **interval}


def _baselines(anybody: np.ndarray, horizon: int) -> dict[str, _Answers]:
    """Make the answers of buying and holding, and of forecasting no change, at the bars, bool [bars], that anybody answered."""
    one, zero = np.where(anybody, 1.0, np.nan), np.where(anybody, 0.0, np.nan)
    unchanged = np.broadcast_to(zero[:, None, None], (len(zero), horizon, 1)).copy()  # [bars, horizon, the median]
    return {BUY_AND_HOLD: _Answers(one, unchanged[..., :0], []), NO_CHANGE: _Answers(zero, unchanged, [MEDIAN])}


def _score(bars: Bars, own: _Answers, book: Ledger) -> Score:
    to_come = np.isfinite(own.position) & (bars.ahead > 0)  # answers judged by the next bar
    side, move = np.sign(own.position[to_come]), np.sign(bars.returns(1)[to_come, 0])
    return Score(
        answers=int(np.isfinite(own.position).sum()),
        hits=int((side * move > 0).sum()),
        misses=int((side * move < 0).sum()),
        flat=int((side == 0).sum()),
        unmoved=int(((side != 0) & (move == 0)).sum()),
        gross_return=float(book.gross.sum()),
        net_return=float(book.equity[-1]),
        max_drawdown=float(drawdowns(book.equity).max()),
        turnover=float(book.changed.sum()),
        trades=int((book.changed > 0).sum()),
        forecast=own.judged(bars),
    )


def _by_member(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each member and its rows, in order of appearance."""
    import pyarrow.compute as pc  # 9 MB, not needed before

    for name in pc.unique(table["member"]).to_pylist():
        yield name, table.filter(pc.equal(table["member"], name))


def _bars(table: pa.Table) -> Bars:
    """Collect the bars of all rows, each once."""
    rows = [_int64(table["time"]), table["segment"].to_numpy(), table["close"].to_numpy()]
    times, first, which = np.unique(rows[0], return_index=True, return_inverse=True)
    bars = Bars(times, rows[1][first], rows[2][first])
    if (contradicting := (bars.segments[which] != rows[1]) | (bars.close[which] != rows[2])).any():
        time = int(rows[0][contradicting.argmax()])
        raise DataError(f"answers hold two closes or two segments of the bar at {iso(time)}; were they made of one file of bars?")
    steps = np.diff(times)[bars.ahead[:-1] > 0]
    if len(steps) and (steps != steps.min()).any():
        raise DataError(
            f"answers have bars {duration(int(steps.min()))} and {duration(int(steps.max()))} apart in one segment; a gap begins another"
        )
    return bars


def _int64(times: pa.ChunkedArray) -> np.ndarray:
    """Convert times of any resolution to int64 nanoseconds UTC."""
    nanoseconds: np.ndarray = times.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy()
    return nanoseconds


def _counted(count: float, name: str) -> str:
    return f"{count:,.10g} {name}{'' if count == 1 else 's'}"
