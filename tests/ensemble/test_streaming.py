"""A streaming pair as a member: the answers of the model in one piece, through gaps, restarts and evictions."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import bar_columns, take, write
from tests.ensemble.models import ALL, agent, forecaster, pair
from tests.ensemble.runs import answers_of, as_json, forecasts_of, quietly, recipe_of
from tests.runs import Run
from tftq.data.features.table import CLOCK_COLUMNS
from tftq.ensemble.interface import COLUMNS
from tftq.ensemble.member import Streaming, open_member
from tftq.ensemble.recipe import MemberRecipe
from tftq.errors import EnsembleError
from tftq.serve.forecast import predict
from tftq.serve.stream import Stream
from tftq.spec.formats import FORECAST_FILE, STEP_FILE

pytestmark = pytest.mark.xdist_group("bars_run")

BARS = take(bar_columns(60), np.r_[0:26, 28:60])


def test_a_pair_answers_as_the_model_in_one_piece(tmp_path: Path) -> None:
    folder = pair(tmp_path / "tft")
    members = {"whole": {"path": folder / "fp32.onnx"}, "stream": {"path": folder}}
    summary, _, _ = quietly(recipe_of(tmp_path / "out", "-", members), lines=as_json(BARS))
    table = answers_of(tmp_path / "out")
    whole, stream = forecasts_of(table, "whole"), forecasts_of(table, "stream")
    assert len(whole) == 26 - 12 + 32 - 12 and np.ptp(whole[:, 0, 1]) > 1e-4
    np.testing.assert_allclose(stream, whole, rtol=0, atol=1e-9)
    assert (summary["members"]["whole"]["kind"], summary["members"]["stream"]["kind"]) == ("tft", "tft, streaming")
    assert summary["members"]["stream"]["path"] == str(folder / STEP_FILE)


def test_a_pair_goes_on_to_the_same_bits_after_a_restart_and_after_evictions(tmp_path: Path) -> None:
    members: dict[str, Any] = {"stream": pair(tmp_path / "tft"), "agent": agent(tmp_path / "agent.onnx")}
    lines = as_json(BARS)

    def cut_off() -> Iterable[str]:
        yield from lines[:42]
        raise KeyboardInterrupt

    quietly(recipe_of(tmp_path / "whole", "-", members), lines=lines)
    with pytest.raises(KeyboardInterrupt):
        quietly(recipe_of(tmp_path / "cut", "-", members), lines=cut_off())
    quietly(recipe_of(tmp_path / "cut", "-", members), lines=lines[42:], resume=True)
    assert answers_of(tmp_path / "cut").equals(answers_of(tmp_path / "whole"))
    summary, _, _ = quietly(recipe_of(tmp_path / "lazy", "-", members, memory={"budget_mb": 2, "residency": "lazy"}), lines=lines)
    assert summary["memory"]["evictions"] > 30
    assert answers_of(tmp_path / "lazy").equals(answers_of(tmp_path / "whole"))


def test_what_a_folder_means(tmp_path: Path) -> None:
    def opened(**part: Any) -> Any:
        return open_member("m", MemberRecipe(**part), threads=1, shared=False)

    folder = pair(tmp_path / "tft")
    assert isinstance(opened(path=folder), Streaming)
    assert [file.name for file in opened(path=folder, format="fp32").files] == ["fp32.onnx"]
    forecaster(folder / "int8_ptq.onnx")
    (folder / FORECAST_FILE).unlink()
    assert [file.name for file in opened(path=folder, format="int8_ptq").files] == ["int8_ptq.onnx"]
    with pytest.raises(EnsembleError, match=rf"member m: .* lacks {FORECAST_FILE} of a streaming pair"):
        opened(path=folder)
    with pytest.raises(EnsembleError, match=r"member m: .*step\.onnx is one half of a streaming pair; give the folder that holds both"):
        opened(path=folder / STEP_FILE)
    (folder / STEP_FILE).unlink()
    assert [file.name for file in opened(path=folder).files] == ["int8_ptq.onnx"]
    with pytest.raises(EnsembleError, match=r"member m: .*: no int8_qat model; it has int8_ptq, fp32"):
        opened(path=folder, format="int8_qat")
    with pytest.raises(EnsembleError, match=rf"member m: .* lacks {STEP_FILE} of a streaming pair"):
        opened(path=folder, format="stream")


def test_a_trained_network_is_answered_as_it_is_predicted(bars_run: Run, tmp_path: Path) -> None:
    """Of the folder of a run the model that `tftq predict` would take; lookback 60 after a warm-up of 50."""
    path = write(tmp_path / "ES.parquet", bar_columns(122))
    summary, _, _ = quietly(recipe_of(tmp_path / "out", path, {"tft": bars_run.folder}))
    found = forecasts_of(answers_of(tmp_path / "out"), "tft")
    prediction = predict(bars_run.folder, path)
    (predicted,) = (batch.values for batch in prediction.batches(64))
    assert summary["members"]["tft"]["path"] == str(prediction.model.path) and len(found) == len(predicted) == 13
    assert any("when training ended" in note for note in summary["notes"])  # these bars are of before
    assert np.abs(found - predicted).max() <= 1 / 255 * np.ptp(predicted)  # integers: a value on a rounding tie may go the other way
    assert np.median(np.abs(found - predicted)) < 1e-6 * np.ptp(predicted)


def test_a_pair_that_fails_while_it_is_loaded_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its bars pushed again would be a window with a gap; the next load takes them all."""
    recipe = MemberRecipe(path=pair(tmp_path / "tft"))
    first, second = (open_member("m", recipe, threads=1, shared=False) for _ in range(2))
    assert isinstance(first, Streaming)
    first.load()
    assert first._stream is not None
    first._stream.push(np.arange(8 * len(ALL)).reshape(8, -1))
    kept = first.state()
    second.restore(kept)
    with monkeypatch.context() as broken:
        broken.setattr(Stream, "push", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            second.load()
    assert not second.loaded
    second.load()
    assert all(np.array_equal(second.state()[name], part) for name, part in kept.items())


def fail(*_: Any) -> None:
    raise RuntimeError("no memory")


def test_a_pair_that_fails_between_two_bars_takes_the_whole_window_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(12, len(COLUMNS))).astype(np.float32)

    def at(age: int) -> Any:
        future = np.zeros((3, len(CLOCK_COLUMNS)), np.float32)
        return SimpleNamespace(age=age, segment=0, history=lambda bars: rows[age - bars : age], future=lambda horizon: future[:horizon])

    folder = pair(tmp_path / "tft")
    failing, other = (open_member("m", MemberRecipe(path=folder), threads=1, shared=False) for _ in range(2))
    for member in (failing, other):
        member.load()
    failing.answer(at(9))
    take_bar, left = Stream._take, iter([True, False])
    with monkeypatch.context() as broken:
        broken.setattr(Stream, "_take", lambda stream, bar: take_bar(stream, bar) if next(left) else fail())
        with pytest.raises(RuntimeError, match="no memory"):
            failing.answer(at(11))
    for age in (11, 12):
        found, expected = (member.answer(at(age)) for member in (failing, other))
        assert found.quantiles is not None and np.array_equal(found.quantiles, expected.quantiles)
