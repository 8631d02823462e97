"""Accuracy against memory on the table whose structure is known, all measured in ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs import ROOT, Run
from tftq.data.load import load_datasets
from tftq.recipe.load import load_recipe
from tftq.serve.session import feeds, open_session


def test_fp32_has_half_the_risk_of_the_seasonal_naive(structured_run: Run) -> None:
    naive = structured_run.summary["val"]["baseline_q_risk"]["0.5"]
    assert structured_run.summary["models"]["fp32"]["q_risk"]["0.5"] < 0.5 * naive


@pytest.mark.parametrize(("model", "allowed"), [("int8_ptq", 1.01), ("int8_qat", 1.005)])
def test_int8_keeps_the_quantile_loss(structured_run: Run, model: str, allowed: float) -> None:
    models = structured_run.summary["models"]
    assert models[model]["loss"] <= allowed * models["fp32"]["loss"]


@pytest.mark.parametrize("model", ["int8_ptq", "int8_qat"])
def test_int8_keeps_the_interval(structured_run: Run, model: str) -> None:
    models = structured_run.summary["models"]
    assert abs(models[model]["coverage"] - models["fp32"]["coverage"]) <= 0.02
    assert models[model]["crossing_rate"] == 0


def test_int8_is_smaller_on_disk(structured_run: Run) -> None:
    sizes = {name: model["file_bytes"] for name, model in structured_run.summary["models"].items()}
    assert sizes["int8_qat"] <= 0.75 * sizes["fp32"]  # so small a model that the graph itself is a good part of either file


def test_the_naive_baseline_and_the_risk_are_what_they_say(structured_run: Run) -> None:
    """Both q-risks computed anew from the exported file and the parquet, in plain numpy."""
    recipe = load_recipe(ROOT / "recipes" / "structured_qat.yaml")
    validation = load_datasets(recipe.data).validation
    session = open_session(structured_run.folder / "exports" / "fp32.onnx")
    batch = validation.batch(range(len(validation)))
    forecast = session.run(["forecast"], feeds(session, batch.inputs))[0].astype(np.float64)
    target = batch.target.astype(np.float64)
    size = np.abs(target).sum()
    for index, quantile in enumerate((0.1, 0.5, 0.9)):
        error = target - forecast[..., index]
        risk = 2 * np.maximum(quantile * error, (quantile - 1) * error).sum() / size
        assert structured_run.summary["models"]["fp32"]["q_risk"][str(quantile)] == pytest.approx(risk, rel=1e-6)
    sales = validation.rows[:, 0].astype(np.float64)
    last = validation.starts + 47
    week_ago = sales[last[:, None] + np.arange(1, 25) - 168]
    assert structured_run.summary["val"]["baseline_q_risk"]["0.5"] == pytest.approx(np.abs(target - week_ago).sum() / size, rel=1e-6)


def test_the_future_of_the_target_is_not_an_input(structured_run: Run) -> None:
    """The target is changed inside the horizon and the forecasts stay."""
    recipe = load_recipe(ROOT / "recipes" / "structured_qat.yaml")
    validation = load_datasets(recipe.data).validation
    session = open_session(structured_run.folder / "exports" / "int8_qat.onnx")

    def forecast() -> np.ndarray:
        return np.asarray(session.run(None, feeds(session, validation.batch([0, 300]).inputs))[0])

    before = forecast()
    for start in validation.starts[[0, 300]].tolist():
        validation.rows[start + 48 : start + 72, 0] *= 3  # column 0 is the target; the known columns stay
    assert np.array_equal(forecast(), before)
    validation.rows[validation.starts[0] + 47, 0] *= 3  # the last history row, which is an input
    assert not np.array_equal(forecast(), before)


def test_batch_mates_do_not_matter_to_the_integer_model(structured_run: Run) -> None:
    """Also a window alone against the same window among outliers."""
    recipe = load_recipe(ROOT / "recipes" / "structured_qat.yaml")
    validation = load_datasets(recipe.data).validation
    session = open_session(structured_run.folder / "exports" / "int8_qat.onnx", threads=1)

    def forecast(history: np.ndarray, future: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, feeds(session, (history, future)))[0])

    history, future, *_ = validation.batch(range(0, 510, 30))
    whole = forecast(history, future)
    for size in (8, 1):
        parts = np.concatenate([forecast(history[i : i + size], future[i : i + size]) for i in range(0, 17, size)])
        np.testing.assert_allclose(parts, whole, rtol=1e-6)
    history[1:] *= 100
    np.testing.assert_allclose(forecast(history, future)[0], whole[0], rtol=1e-6)


def test_paths_of_the_run_are_in_its_folder(structured_run: Run) -> None:
    for model in structured_run.summary["models"].values():
        assert Path(model["path"]).is_relative_to(structured_run.folder)
