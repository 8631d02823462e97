"""A session writes down what a state counts on before that state."""

import io
from pathlib import Path

import pytest

from tests.data.helpers import MINUTE
from tftq.console import Console, Messages
from tftq.ensemble import loop as module
from tftq.ensemble.ensemble import Council
from tftq.ensemble.feed import Incoming
from tftq.ensemble.loop import Session
from tftq.ensemble.market import Market
from tftq.ensemble.residency import Residency


def test_answers_are_on_the_disk_before_the_state_that_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Messages(Console(file=io.StringIO()))
    council = Council([], {}, "median", 1, Residency([], {}, 0, lazy=False), 1, tell)
    session = Session(tmp_path, Market(MINUTE, None, 1), council, Incoming(iter(())), saved=None, tell=tell)
    order, flush, save = [], session.journal.flush, module.save
    monkeypatch.setattr(session.journal, "flush", lambda: order.append("journal") or flush())
    monkeypatch.setattr(module, "save", lambda *given, **notes: order.append("state") or save(*given, **notes))
    session.save()
    session.close()
    assert order == ["journal", "state"] and (tmp_path / "state.npz").is_file()
