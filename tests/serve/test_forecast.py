"""Forecasts of a file of data: every window, the newest one, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import BEGIN, MINUTE, bar_columns, bars_recipe, table_columns, table_recipe, take, write
from tests.export.stub import write_stub
from tests.serving import all_of, bars_model, table_model
from tftq.data.bars import load_bars
from tftq.data.features.table import BAR_COLUMNS
from tftq.data.load import load_datasets
from tftq.data.windows import Windows
from tftq.errors import DataError, MetadataError, PredictError, RecipeError
from tftq.serve.forecast import ServedModel, predict
from tftq.spec.metadata import HalfMetadata, InputColumn

HOUR = 60 * MINUTE


def test_forecasts_are_those_of_the_windows_of_training(tmp_path: Path) -> None:
    """And the newest windows, whose horizon has not happened, are forecast too."""
    model = bars_model(tmp_path / "m.onnx")
    path = write(tmp_path / "ES.parquet", bar_columns(300))
    source = load_bars(bars_recipe(path, warmup=50))
    windows = Windows("all", source.inputs, source.rows, source.times, source.starts, source.target)
    batch = windows.batch(range(len(windows)))
    found = all_of(predict(tmp_path / "m.onnx", path))
    assert len(found.values) == len(windows) + 10 == 300 - 50 - 60 + 1
    np.testing.assert_allclose(found.values[:-10], model(*batch.inputs), atol=1e-7)
    assert np.array_equal(found.times[:-10], windows.target_times(range(len(windows))))
    assert np.array_equal(found.origins, BEGIN + MINUTE * np.arange(109, 300)) and found.times[-1, -1] == BEGIN + MINUTE * 309
    closes = bar_columns(300)["close"][109:]
    assert found.last_close is not None and np.array_equal(found.last_close, closes) and found.prices is not None
    np.testing.assert_allclose(found.prices, closes[:, None, None] * np.exp(found.values), rtol=1e-6)


def test_t7_what_happens_in_the_horizon_changes_nothing(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    columns = bar_columns(200)
    before = all_of(predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", take(columns, slice(0, 190)))))
    for name in ("open", "high", "low", "close"):
        columns[name][190:] *= 1.5
    after = all_of(predict(tmp_path / "m.onnx", write(tmp_path / "b.parquet", columns)))
    assert np.array_equal(before.values, after.values[:-10]) and not np.array_equal(after.values[-1], before.values[-1])


@pytest.mark.parametrize("batch_size", [1, 8, 17])
def test_w2_the_batch_size_does_not_matter(tmp_path: Path, batch_size: int) -> None:
    bars_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(126)))
    assert len(prediction) == 17
    np.testing.assert_allclose(all_of(prediction, batch_size).values, all_of(prediction, 5).values, rtol=0, atol=1e-6)


def test_w1_too_few_bars(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx", warmup=0)
    with pytest.raises(DataError, match=r"series ES: 60 needed, 59 found"):
        predict(tmp_path / "m.onnx", write(tmp_path / "ES.parquet", bar_columns(59)))
    with pytest.raises(DataError, match=r"series ES: 60 needed, 59 found"):
        predict(tmp_path / "m.onnx", tmp_path / "ES.parquet", newest=True)
    assert len(predict(tmp_path / "m.onnx", write(tmp_path / "ES.parquet", bar_columns(60)))) == 1


def test_windows_before_a_gap_are_forecast_as_if_there_was_none(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    path = write(tmp_path / "a.parquet", take(bar_columns(400), np.r_[0:150, 180:400]))
    prediction = predict(tmp_path / "m.onnx", path)
    found = all_of(prediction)
    assert len(found.values) == (150 - 109) + (220 - 109)
    assert (np.diff(found.times) == MINUTE).all() and (found.times[:, 0] - found.origins == MINUTE).all()
    known = np.concatenate([batch.outcome.known for batch in prediction.batches()])
    assert np.array_equal(np.flatnonzero(~known), np.r_[31:41, 142:152])  # the last ten of each segment
    assert any("the next 10 steps of 1 min" in note for note in prediction.notes)


def future_rows(count: int, known: int) -> dict[str, Any]:
    """`count` rows of the table, and `known` more of which only x is known."""
    columns = table_columns(count + known)
    columns["y"][count:] = np.nan
    return columns


def test_w3_exactly_the_lookback_and_the_known_future(tmp_path: Path) -> None:
    model = table_model(tmp_path / "m.onnx", calendar=("hour",))
    path = write(tmp_path / "t.parquet", future_rows(4, 2))
    hours = 2 * np.pi * np.arange(6) / 24
    rows = np.stack([np.arange(6), np.arange(6) % 5 + 0.5, np.sin(hours), np.cos(hours)], axis=1).astype(np.float32)
    for newest in (False, True):
        found = all_of(predict(tmp_path / "m.onnx", path, newest=newest))
        np.testing.assert_allclose(found.values, model(rows[None, :4], rows[None, 4:, 1:]), atol=1e-7)
        assert found.times.tolist() == [[BEGIN + 4 * HOUR, BEGIN + 5 * HOUR]] and found.last_close is None and found.prices is None
        notes = predict(tmp_path / "m.onnx", path, newest=newest).notes
        assert notes == ["the last 2 rows, from 2024-01-08T04:00:00Z on, are taken for what is known of the future"]


def test_rows_too_alike_to_learn_from_can_be_forecast(tmp_path: Path) -> None:
    model = table_model(tmp_path / "m.onnx")
    columns = table_columns(6)
    columns["y"] = 4000 + columns["y"] / 1000
    path = write(tmp_path / "t.parquet", columns)
    with pytest.raises(DataError, match="float32 tells only steps"):
        load_datasets(table_recipe(path))
    rows = np.stack([columns["y"], columns["x"]], axis=1).astype(np.float32)
    found = all_of(predict(tmp_path / "m.onnx", path))
    np.testing.assert_allclose(found.values, model(rows[None, :4], rows[None, 4:, 1:]), atol=1e-6)


def test_a_future_that_is_not_known(tmp_path: Path) -> None:
    table_model(tmp_path / "m.onnx")
    columns = future_rows(10, 2)
    columns["x"][11] = np.nan
    path = write(tmp_path / "t.parquet", columns)
    lacks = r"the forecast after 2024-01-08T09:00:00Z lacks column 'x' at 1 of 2 times from 2024-01-08T11:00:00Z to 2024-01-08T11:00:00Z"
    with pytest.raises(DataError, match=lacks):
        predict(tmp_path / "m.onnx", path, newest=True)
    prediction = predict(tmp_path / "m.onnx", path)
    assert len(prediction) == 6 and any("1 windows left out" in note and "lacks column 'x'" in note for note in prediction.notes)
    with pytest.raises(DataError, match=r"after 2024-01-08T03:00:00Z lacks column 'x' at 2 of 2 times .*; append rows"):
        predict(tmp_path / "m.onnx", write(tmp_path / "t.parquet", table_columns(4)))


def test_a_calendar_is_known_of_any_time(tmp_path: Path) -> None:
    table_model(tmp_path / "m.onnx", known=(), calendar=("hour", "weekday"))
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "t.parquet", table_columns(6)))
    assert len(prediction) == 3 and all_of(prediction).times[-1].tolist() == [BEGIN + 6 * HOUR, BEGIN + 7 * HOUR]


@pytest.mark.parametrize("newest", [False, True])
def test_missing_values_in_the_past_are_refused_until_told_otherwise(tmp_path: Path, newest: bool) -> None:
    table_model(tmp_path / "m.onnx")
    columns = future_rows(20, 2)
    columns["y"][[9, 10]] = np.nan
    path = write(tmp_path / "t.parquet", columns)
    with pytest.raises(DataError, match=r"column 'y': 2 missing, first at 2024-01-08T09:00:00Z; set `data.missing: drop`"):
        predict(tmp_path / "m.onnx", path, newest=newest)
    prediction = predict(tmp_path / "m.onnx", path, newest=newest, overrides=["data.missing=drop"])
    assert all_of(prediction).origins[-1] == BEGIN + 19 * HOUR and len(prediction) == (1 if newest else (9 - 3) + (9 - 3))


@pytest.mark.parametrize("newest", [False, True])
def test_a_missing_price_is_named(tmp_path: Path, newest: bool) -> None:
    bars_model(tmp_path / "m.onnx")
    columns = bar_columns(200)
    columns["close"][195] = np.nan
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=r"column 'close': 1 missing .*2024-01-08T03:15:00Z"):
        predict(tmp_path / "m.onnx", path, newest=newest)
    assert all_of(predict(tmp_path / "m.onnx", path, newest=newest, overrides=["data.missing=drop"])).origins[-1] == BEGIN + 194 * MINUTE


def test_an_input_that_is_not_finite_names_time_and_column(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(130)))
    prediction.history.rows[120, 3] = np.inf
    with pytest.raises(PredictError, match=rf"a.parquet: column '{BAR_COLUMNS[3]}' is not finite at 2024-01-08T02:00:00Z"):
        all_of(prediction)


def test_a_forecast_that_is_not_finite_names_its_window(tmp_path: Path) -> None:
    model = table_model(tmp_path / "m.onnx")
    model.of_history[0, 0] = np.nan
    model.write(tmp_path / "m.onnx", ServedModel(tmp_path / "m.onnx").metadata)
    with pytest.raises(PredictError, match=r"m.onnx: the forecast after 2024-01-08T03:00:00Z is not finite, though its inputs are"):
        all_of(predict(tmp_path / "m.onnx", write(tmp_path / "t.parquet", table_columns(9))))


def test_data_of_another_kind_or_step(tmp_path: Path) -> None:
    bars_model(tmp_path / "bars.onnx")
    table_model(tmp_path / "table.onnx")
    bars, table = write(tmp_path / "bars.parquet", bar_columns(200)), write(tmp_path / "table.parquet", table_columns(30))
    with pytest.raises(DataError, match="no column for open"):
        predict(tmp_path / "bars.onnx", table)
    with pytest.raises(DataError, match=r"lacks columns .*data.target: y"):
        predict(tmp_path / "table.onnx", bars, newest=True)
    fives = write(tmp_path / "fives.parquet", take(bar_columns(1000), slice(None, None, 5)))
    for newest in (False, True):
        with pytest.raises(DataError, match="rows are 5 min apart, the model was trained on steps of 1 min"):
            predict(tmp_path / "bars.onnx", fives, newest=newest)


def test_a_model_of_other_columns(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    metadata = ServedModel(tmp_path / "m.onnx").metadata
    _, *others = metadata.inputs["history"]
    inputs = {**metadata.inputs, "history": (InputColumn("phase_of_the_moon", "observed"), *others)}
    bars_model(tmp_path / "m.onnx").write(tmp_path / "m.onnx", replace(metadata, inputs=inputs))
    with pytest.raises(PredictError, match=r"225 needed, 225 found; missing: phase_of_the_moon; not expected: log_return_1\)"):
        predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(200)))


def test_contracts(tmp_path: Path) -> None:
    """Another contract than the one of training is forecast with a note."""
    columns = bar_columns(200)
    both = {name: np.r_[values, values] for name, values in columns.items()} | {"symbol": ["ESZ3"] * 200 + ["NQZ3"] * 200}
    bars_model(tmp_path / "m.onnx", symbol="ESZ3")
    path = write(tmp_path / "a.parquet", both)
    prediction = predict(tmp_path / "m.onnx", path, overrides=["data.symbol=NQZ3"])
    assert "the model was trained on ESZ3, this is NQZ3" in prediction.notes
    newest = predict(tmp_path / "m.onnx", path, newest=True, overrides=["data.symbol=NQZ3"])
    assert np.array_equal(all_of(newest).values[0], all_of(prediction).values[-1]) and not any("whole file" in n for n in newest.notes)
    with pytest.raises(DataError, match=r"several contracts at the same times; choose one with data.symbol=.*ESZ3, NQZ3"):
        predict(tmp_path / "m.onnx", path, overrides=["data.symbol=null"])
    with pytest.raises(DataError, match=r"no CL in .*; it has ESZ3, NQZ3"):
        predict(tmp_path / "m.onnx", path, newest=True, overrides=["data.symbol=CL"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.lookback=30", "data.lookback: cannot be changed here; allowed: data.symbol, data.time_zone, data.duplicates, data.missing"),
        ("data.missing=maybe", r"data.missing: found 'maybe'; allowed: .*drop"),
        ("data.symbl=ES", "did you mean data.symbol"),
    ],
)
def test_overrides_that_are_refused(tmp_path: Path, override: str, message: str) -> None:
    bars_model(tmp_path / "m.onnx")
    with pytest.raises(RecipeError, match=message):
        predict(tmp_path / "m.onnx", tmp_path / "a.parquet", overrides=[override])


def test_files_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(PredictError, match=r"none.onnx: no such file"):
        predict(tmp_path / "none.onnx", tmp_path / "a.parquet")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(MetadataError, match=r"text.onnx: no ONNX file"):
        predict(tmp_path / "text.onnx", tmp_path / "a.parquet")
    with pytest.raises(PredictError, match=r"stub.onnx: its metadata says nothing of the data it was trained on"):
        predict(write_stub(tmp_path / "stub.onnx"), tmp_path / "a.parquet")
    model = bars_model(tmp_path / "m.onnx")
    whole = ServedModel(tmp_path / "m.onnx").metadata
    half = HalfMetadata.of(whole, weights="fp32", part="step", partner="forecast.onnx", pair="abc", hidden=1, states=0)
    model.write(tmp_path / "step.onnx", half)
    with pytest.raises(PredictError, match=r"step.onnx: one half of a streaming pair, for tftq.Stream; give the model"):
        predict(tmp_path / "step.onnx", tmp_path / "a.parquet")


def test_the_model_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "exports").mkdir(parents=True)
    for name in ("fp32", "int8_ptq"):
        bars_model(tmp_path / "run" / "exports" / f"{name}.onnx")
    path = write(tmp_path / "a.parquet", bar_columns(120))
    assert predict(tmp_path / "run", path).model.path.name == "int8_ptq.onnx"
    assert predict(tmp_path / "run" / "exports", path, format="fp32").model.path.name == "fp32.onnx"
    with pytest.raises(PredictError, match="no int8_qat model; it has int8_ptq, fp32"):
        predict(tmp_path / "run", path, format="int8_qat")
    with pytest.raises(PredictError, match="no exported model; it has none"):
        predict(tmp_path, path)
    with pytest.raises(PredictError, match="--format applies only to folders"):
        predict(tmp_path / "run" / "exports" / "fp32.onnx", path, format="fp32")


def test_threads_are_those_of_the_session(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    path = write(tmp_path / "a.parquet", bar_columns(120))
    assert predict(tmp_path / "m.onnx", path, threads=3).model.session.get_session_options().intra_op_num_threads == 3
