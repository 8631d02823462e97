"""Forecasting a file of data with an exported model: what comes out, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.data.helpers import BEGIN, MINUTE, bar_columns, bars_recipe, table_columns, table_recipe, take, write
from tests.export.stub import write_stub
from tests.runs import ROOT, SMALL, Run
from tests.serving import bars_model, table_model
from tftq.cli import main
from tftq.data.bars import load_bars
from tftq.data.features.table import BAR_COLUMNS
from tftq.data.load import load_datasets
from tftq.data.windows import Windows
from tftq.errors import DataError, MetadataError, PredictError, RecipeError
from tftq.jobs.predict import Accuracy, Forecasts, Prediction, ServedModel, predict, write_forecasts
from tftq.recipe.load import load_recipe
from tftq.spec.metadata import HalfMetadata, InputColumn
from tftq.train.build import build_model
from tftq.train.checkpoint import load_checkpoint, load_model

pytestmark = pytest.mark.xdist_group("bars_run")

HOUR = 60 * MINUTE


def all_of(prediction: Prediction, batch_size: int = 32) -> Forecasts:
    """Every forecast in one batch."""
    batches = list(prediction.batches(batch_size))
    origins, times, values = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("origins", "times", "values"))
    close = None if batches[0].last_close is None else np.concatenate([batch.last_close for batch in batches])
    return Forecasts(origins, times, values, close, batches[-1].outcome)


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


def test_accuracy_by_hand(tmp_path: Path) -> None:
    """q-risk is 2 Σ pinball / Σ|y|, that of naive P50 Σ|y - naive| / Σ|y|, of the windows whose horizon has happened."""
    table_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "t.parquet", table_columns(10)))
    accuracy = Accuracy(prediction.model)
    assert accuracy.summary() is None
    found = []
    for forecasts in prediction.batches(2):
        accuracy.add(forecasts)
        found.append(forecasts.values)
    values = np.concatenate(found).astype(np.float64)  # 5 windows: rows 4 to 8 are the first targets; y counts rows
    target = np.array([[row, row + 1] for row in range(4, 9)], np.float64)
    error = target[..., None] - values
    pinball = np.maximum(np.array([0.1, 0.5, 0.9]) * error, np.array([-0.9, -0.5, -0.1]) * error).sum((0, 1))
    summary = accuracy.summary()
    assert summary is not None and summary["windows"] == 5
    assert list(summary["q_risk"].values()) == pytest.approx(2 * pinball / target.sum())
    assert summary["baseline_q_risk"]["0.5"] == pytest.approx(3 * 10 / target.sum())  # a season of three rows: always three behind
    assert summary["coverage"] == np.mean((values[..., 0] <= target) & (target <= values[..., 2]))


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
    prediction.history.rows[120, 3] = torch.inf
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
    with pytest.raises(PredictError, match=r"225 needed, 225 found; missing: phase_of_the_moon; not wanted: log_return_1\)"):
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
    with pytest.raises(PredictError, match=r"step.onnx: one half of a streaming pair, for tftq.serve.stream.Stream; give the model"):
        predict(tmp_path / "step.onnx", tmp_path / "a.parquet")


def test_the_model_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "exports").mkdir(parents=True)
    for name in ("fp32", "int8_ptq"):
        bars_model(tmp_path / "run" / "exports" / f"{name}.onnx")
    path = write(tmp_path / "a.parquet", bar_columns(120))
    assert predict(tmp_path / "run", path).model.path.name == "int8_ptq.onnx"
    assert predict(tmp_path / "run" / "exports", path, kind="fp32").model.path.name == "fp32.onnx"
    with pytest.raises(PredictError, match="no int8_qat model; it has int8_ptq, fp32"):
        predict(tmp_path / "run", path, kind="int8_qat")
    with pytest.raises(PredictError, match="no exported model; it has none"):
        predict(tmp_path, path)
    with pytest.raises(PredictError, match="--format applies only to folders"):
        predict(tmp_path / "run" / "exports" / "fp32.onnx", path, kind="fp32")


def test_the_file_of_forecasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tftq.jobs.predict.ROW_GROUP", 200)
    bars_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(159)))
    expected = all_of(prediction)
    out = tmp_path / "out.parquet"
    for _ in write_forecasts(prediction.batches(8), out, prediction.model):
        assert not out.exists()
    table = pq.read_table(out)
    prices = ["price_P10", "price_P50", "price_P90"]
    assert table.column_names == ["origin", "time", "step", "P10", "P50", "P90", *prices]
    assert table.schema.field("time").type == pa.timestamp("ns", tz="UTC")
    assert pq.ParquetFile(out).num_row_groups == 3  # of 24, 24 and 2 windows of ten steps
    columns = {name: table[name].to_numpy().reshape(50, 10) for name in table.column_names}
    assert (columns["origin"].astype(np.int64) == expected.origins[:, None]).all()
    assert (columns["time"].astype(np.int64) == expected.times).all() and (columns["step"] == np.arange(1, 11)).all()
    np.testing.assert_allclose(np.stack([columns[name] for name in ("P10", "P50", "P90")], axis=-1), expected.values, atol=1e-6)
    np.testing.assert_allclose(np.stack([columns[name] for name in prices], axis=-1), expected.prices, rtol=1e-6)


def test_a_file_that_is_not_whole_does_not_get_its_name(tmp_path: Path) -> None:
    bars_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(200)))
    prediction.history.rows[-1] = torch.nan
    with pytest.raises(PredictError):
        list(write_forecasts(prediction.batches(8), tmp_path / "out.parquet", prediction.model))
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["predict", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bars_model(tmp_path / "m.onnx")
    path = write(tmp_path / "a.parquet", bar_columns(200))
    expected = all_of(predict(tmp_path / "m.onnx", path))
    assert expected.prices is not None
    status, printed, _ = run_cli(capsys, tmp_path / "m.onnx", path)
    assert status == 0 and "2024-01-08T03:29:00Z" in printed
    assert (
        f"price after 2024-01-08T03:19:00Z, close {bar_columns(200)['close'][-1]:g}" in printed
        and f"{expected.prices[-1, 9, 2]:.6g}" in printed
    )
    assert "81 windows whose outcome is known (those trained on prove nothing): q-risk P10" in printed and "(naive P50 1.0000)" in printed
    status, printed, _ = run_cli(capsys, tmp_path / "m.onnx", path, "--out", tmp_path / "out.parquet", "--batch-size", 7)
    assert status == 0 and "91 windows of 10 steps forecast into" in printed and pq.read_metadata(tmp_path / "out.parquet").num_rows == 910

    status, printed, errors = run_cli(capsys, tmp_path / "m.onnx", path, "--json", "--last")
    found = json.loads(printed)
    assert status == 0 and errors == "" and found["windows"] == 1 and found["accuracy"] is None and found["out"] is None
    assert found["last"]["origin"] == "2024-01-08T03:19:00Z" and found["last"]["close"] == bar_columns(200)["close"][-1]
    last = found["last"]["steps"][-1]
    assert last["time"] == "2024-01-08T03:29:00Z" and set(last) == {"time", "P10", "P50", "P90", "price_P10", "price_P50", "price_P90"}
    assert last["P50"] == pytest.approx(expected.values[-1, -1, 1], abs=1e-6)
    assert json.loads(run_cli(capsys, tmp_path / "m.onnx", path, "--json")[1])["accuracy"]["baseline_q_risk"] == {"0.5": 1.0}


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bars_model(tmp_path / "m.onnx")
    path = write(tmp_path / "a.parquet", bar_columns(120))
    status, printed, errors = run_cli(capsys, tmp_path / "m.onnx", tmp_path / "none.parquet", "--json")
    assert status == 1 and printed == "" and "none.parquet" in errors
    assert run_cli(capsys, tmp_path / "m.onnx", path, "data.horizon=3")[0] == 2
    for wrong in (["--batch-size", "0"], ["--out", str(path)], ["--out", "a.csv"], ["--format", "int4"]):
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(tmp_path / "m.onnx"), str(path), *wrong])
        assert stop.value.code == 2
        capsys.readouterr()


def test_a_run_forecasts_what_its_model_does(bars_run: Run) -> None:
    """The exported file on raw bars against the trained model of the checkpoint in torch."""
    recipe = load_recipe(ROOT / "recipes" / "qat_int8.yaml", SMALL)
    data = load_datasets(recipe.data)
    model = build_model(recipe.model, data)
    best = bars_run.folder / "checkpoints" / "best.pt"
    load_model(model, load_checkpoint(best), best)
    with torch.no_grad():
        expected = model.eval()(*data.validation.batch(range(len(data.validation))).inputs).numpy()
    assert predict(bars_run.folder, recipe.data.path).model.path.name == "int8_qat.onnx"
    prediction = predict(bars_run.folder, recipe.data.path, kind="fp32")
    found = all_of(prediction)
    there = np.isin(found.origins, data.validation.times[data.validation.last_rows(range(len(data.validation)))].numpy())
    np.testing.assert_allclose(found.values[there], expected, rtol=1e-4, atol=1e-8)
    newest = all_of(predict(bars_run.folder, recipe.data.path, newest=True, kind="fp32"))
    np.testing.assert_allclose(newest.values[0], found.values[-1], rtol=1e-5, atol=1e-9)
