"""A run over bars in its folder: every answer is written down, and a state from time to time, so that a restart goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tftq.console import Messages
from tftq.ensemble.answer_log import Journal
from tftq.ensemble.checkpoint import Saved, restore, save
from tftq.ensemble.ensemble import BarAnswers, Council
from tftq.ensemble.feed import Incoming
from tftq.ensemble.market import Market
from tftq.ensemble.recipe import OWN
from tftq.errors import TftqError


class Session:
    """The market and the members over the bars that come.

    Args:
        folder: of the run.
        market: before the first bar.
        council: the members, before the first bar.
        incoming: the bars.
        saved: the folder's last state, to go on from; None to begin.
        tell: tells the user, and keeps what was told.

    Raises:
        EnsembleError: a state or a journal that cannot be gone on from.

    Attributes:
        journal: where answers are kept.
        resumed_after: bars answered before a restart; 0 where there was none. Times and loads are of those that follow.
    """

    def __init__(self, folder: Path, market: Market, council: Council, incoming: Incoming, *, saved: Saved | None, tell: Messages) -> None:
        self._folder, self._market, self._council, self._incoming, self._tell = folder, market, council, incoming, tell
        levels = sorted({level for member in council.members for level in member.interface.levels})
        self._counts_at_bar: Counter[str] = Counter()  # of bars left out before the newest
        self._after = None if saved is None else saved.newest  # bars up to this time were answered before a restart
        if saved is None:
            if incoming.before:
                market.begin(incoming.before, incoming.age)
            self.journal, self.resumed_after = Journal(folder, levels), 0
            return
        restore(saved, market, council)
        incoming.counts, incoming.fixed_point = Counter(saved.notes["counts"]), saved.notes["fixed_point"]
        self._counts_at_bar = Counter(saved.notes["counts_at_bar"])
        tell.kept[:0] = [sentence for sentence in saved.notes["told"] if sentence not in tell.kept]
        self.journal, self.resumed_after = Journal(folder, levels, saved.notes["rows"]), council.bars
        tell(f"goes on after {council.bars} bars")

    def answers(self, save_every: int) -> Iterator[BarAnswers]:
        """Ask the members bar by bar.

        A bar's answers are given out before the state after it is written, so that a restart may repeat some and never loses one.

        Args:
            save_every: bars from one state to the next.

        Raises:
            TftqError: what the bars raise; the state after the last good one is written.
        """
        market, council, incoming = self._market, self._council, self._incoming
        while True:
            try:
                bar = next(incoming.bars, None)
            except TftqError:
                self.save()
                raise
            if bar is None:
                break
            if self._after is not None and bar.time <= self._after:  # the feed began anew: what it left out before was counted then
                incoming.counts = self._counts_at_bar.copy()
                continue
            self._counts_at_bar = incoming.counts.copy()
            begun = time.perf_counter()
            market.push(bar)
            if incoming.since is not None and bar.time < incoming.since:
                continue
            answers = council.answer(market)
            council.latency[OWN].add(time.perf_counter() - begun)
            self.journal.add(answers)
            yield answers
            if council.bars % save_every == 0:
                self.save()
        self.save()

    def close(self) -> None:
        """End; the folder can be gone on from."""
        self._council.close()
        self.journal.close()

    def save(self) -> None:
        """Write the state after the newest bar."""
        self.journal.flush()
        save(
            self._folder,
            self._market,
            self._council,
            rows=self.journal.rows,
            counts=dict(self._incoming.counts),
            counts_at_bar=dict(self._counts_at_bar),
            fixed_point=self._incoming.fixed_point,
            told=self._tell.kept,
        )
