"""Run an ensemble over bars in its folder: log every answer, and save a state from time to time, from which a restart resumes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tftq.console import Messages
from tftq.ensemble.answer_log import AnswerLog
from tftq.ensemble.checkpoint import Saved, restore, save
from tftq.ensemble.ensemble import BarAnswers, Ensemble
from tftq.ensemble.feed import Feed
from tftq.ensemble.market import Market
from tftq.ensemble.recipe import OWN
from tftq.errors import TftqError


class Loop:
    """Runs the market and the members over the bars of a feed.

    Args:
        folder: of the run.
        market: before the first bar.
        ensemble: the members, before the first bar.
        feed: the bars.
        saved: the state to resume from; None to begin.
        messages: prints messages, and keeps them.

    Raises:
        EnsembleError: a state or an answer log that cannot be resumed.

    Attributes:
        log: of the answers.
        resumed_after: bars answered before a restart; 0 where there was none. Times and loads are of later bars.
    """

    def __init__(self, folder: Path, market: Market, ensemble: Ensemble, feed: Feed, *, saved: Saved | None, messages: Messages) -> None:
        self._folder, self._market, self._ensemble, self._feed, self._messages = folder, market, ensemble, feed, messages
        levels = sorted({level for member in ensemble.members for level in member.interface.levels})
        self._counts_at_bar: Counter[str] = Counter()  # of bars left out before the newest
        self._after = None if saved is None else saved.newest  # bars up to this time were answered before a restart
        if saved is None:
            if feed.before:
                market.begin(feed.before, feed.age)
            self.log, self.resumed_after = AnswerLog(folder, levels), 0
            return
        restore(saved, market, ensemble)
        feed.counts, feed.fixed_point = Counter(saved.notes["counts"]), saved.notes["fixed_point"]
        self._counts_at_bar = Counter(saved.notes["counts_at_bar"])
        messages.kept[:0] = [sentence for sentence in saved.notes["told"] if sentence not in messages.kept]
        self.log, self.resumed_after = AnswerLog(folder, levels, saved.notes["rows"]), ensemble.bars
        messages(f"resumes after {ensemble.bars} bars")

    def answers(self, save_every: int) -> Iterator[BarAnswers]:
        """Yield the answers bar by bar.

        A bar's answers are yielded before the state after it is written, so that a restart may repeat some and never loses one.

        Args:
            save_every: bars from one state to the next.

        Raises:
            TftqError: an error of the feed; the state after the last good bar is written.
        """
        market, ensemble, feed = self._market, self._ensemble, self._feed
        while True:
            try:
                bar = next(feed.bars, None)
            except TftqError:
                self.save()
                raise
            if bar is None:
                break
            if self._after is not None and bar.time <= self._after:  # the feed started again: bars left out before were counted then
                feed.counts = self._counts_at_bar.copy()
                continue
            self._counts_at_bar = feed.counts.copy()
            begun = time.perf_counter()
            market.push(bar)
            if feed.since is not None and bar.time < feed.since:
                continue
            answers = ensemble.answer(market)
            ensemble.latency[OWN].add(time.perf_counter() - begun)
            self.log.add(answers)
            yield answers
            if ensemble.bars % save_every == 0:
                self.save()
        self.save()

    def close(self) -> None:
        """Release the members and the log; the folder can be resumed."""
        self._ensemble.close()
        self.log.close()

    def save(self) -> None:
        """Write the state after the newest bar."""
        self.log.flush()
        save(
            self._folder,
            self._market,
            self._ensemble,
            rows=self.log.rows,
            counts=dict(self._feed.counts),
            counts_at_bar=dict(self._counts_at_bar),
            fixed_point=self._feed.fixed_point,
            told=self._messages.kept,
        )
