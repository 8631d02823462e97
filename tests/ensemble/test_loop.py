"""A loop writes down what a state counts on before that state."""

import io
from pathlib import Path

import pytest

from tests.data.helpers import MINUTE
from tftq.console import Console, Messages
from tftq.ensemble import loop as module
from tftq.ensemble.ensemble import Ensemble
from tftq.ensemble.feed import Feed
from tftq.ensemble.loop import Loop
from tftq.ensemble.market import Market
from tftq.ensemble.residency import Residency


def test_answers_are_on_the_disk_before_the_state_that_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Messages(Console(file=io.StringIO()))
    ensemble = Ensemble([], {}, "median", 1, Residency([], {}, 0, lazy=False), 1, tell)
    loop = Loop(tmp_path, Market(MINUTE, None, 1), ensemble, Feed(iter(())), saved=None, messages=tell)
    order, flush, save = [], loop.log.flush, module.save
    monkeypatch.setattr(loop.log, "flush", lambda: order.append("log") or flush())
    monkeypatch.setattr(module, "save", lambda *given, **notes: order.append("state") or save(*given, **notes))
    loop.save()
    loop.close()
    assert order == ["log", "state"] and (tmp_path / "state.npz").is_file()
