"""The command `tftq predict`: accuracy, the file of forecasts, what is printed, exit statuses."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.data.helpers import bar_columns, table_columns, write
from tests.runs import ROOT, SMALL, Run
from tests.serving import all_of, bars_model, table_model
from tftq.cli import main
from tftq.data.load import load_datasets
from tftq.errors import PredictError
from tftq.jobs.predict import Accuracy, write_forecasts
from tftq.model.batch import gather
from tftq.recipe.load import load_recipe
from tftq.serve.forecast import predict
from tftq.train.build import build_model
from tftq.train.checkpoint import load_checkpoint, load_model

pytestmark = pytest.mark.xdist_group("bars_run")


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
    prediction.history.rows[-1] = np.nan
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
    for wrong in (["--batch-size", "0"], ["--threads", "-1"], ["--out", str(path)], ["--out", "a.csv"], ["--format", "int4"]):
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
        expected = model.eval()(*gather(data.validation, range(len(data.validation))).inputs).numpy()
    assert predict(bars_run.folder, recipe.data.path).model.path.name == "int8_qat.onnx"
    prediction = predict(bars_run.folder, recipe.data.path, format="fp32")
    found = all_of(prediction)
    there = np.isin(found.origins, data.validation.times[data.validation.last_rows(range(len(data.validation)))])
    np.testing.assert_allclose(found.values[there], expected, rtol=1e-4, atol=1e-8)
    newest = all_of(predict(bars_run.folder, recipe.data.path, newest=True, format="fp32"))
    np.testing.assert_allclose(newest.values[0], found.values[-1], rtol=1e-5, atol=1e-9)
