"""Which windows choose the layers that stay in floating point, and that a resumed run keeps the choice; and one run of it all."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tftq.jobs.quantize
from tests.quant.small import small_table
from tests.runs import ROOT, Run
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.jobs.folder import RunFolder
from tftq.jobs.quantize import MEASURED, Quantizing
from tftq.quant.sensitivity import LayerSensitivity, Sensitivity
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import QuantRecipe
from tftq.spec.metadata import read_metadata

CPU = torch.device("cpu")
FOUND = Sensitivity(7, 1.0, 1.5, (LayerSensitivity("heads.linear", 48, 40.0, None, 1.5, 0.5),), 0.1, ("heads.linear",), 1.0)


def quantizing(recipe: QuantRecipe) -> Quantizing:
    train = load_datasets(load_recipe(ROOT / "recipes" / "structured_qat.yaml").data).train
    return Quantizing(recipe, small_table(), train, CPU, 32)


def test_the_choice_is_measured_on_windows_that_no_range_was_calibrated_on() -> None:
    made = quantizing(QuantRecipe(method="ptq", calibration_windows=100))
    calibrated, others = made._calibration_windows(), made._other_windows()
    last = len(made.train) - 1
    assert (calibrated[0], calibrated[-1], len(calibrated), len(others)) == (0, last, 100, 100)
    assert not torch.isin(others, calibrated).any() and others[0] == 1 and others[-1] == last - 1
    assert int(others.diff().max()) <= last // 99 + 2  # spread over the whole part


def test_where_there_are_too_few_others_all_windows_serve() -> None:
    made = quantizing(QuantRecipe(method="ptq", calibration_windows=2000))
    assert len(made.train) < 2 * 2000
    assert torch.equal(made._other_windows(), made._calibration_windows())


def test_a_resumed_run_goes_on_with_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = quantizing(QuantRecipe(method="ptq", loss_budget=0.1, keep_float=("encoder",)))
    kept = []
    monkeypatch.setattr(Quantizing, "_calibrated", lambda self, keep_float: kept.append(list(keep_float)) or made.model)
    monkeypatch.setattr(tftq.jobs.quantize, "measure_sensitivity", lambda *_, **__: FOUND)
    console = Console(quiet=True)
    assert made.quantize(RunFolder(tmp_path), console) == (made.model, FOUND)
    assert kept == [["encoder"], ["encoder", "heads.linear"]]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(tftq.jobs.quantize, "measure_sensitivity", refuse)
    assert made.quantize(RunFolder(tmp_path), console) == (made.model, FOUND)
    assert kept[2:] == kept[:2]


def test_a_run_measures_keeps_and_tells(do_run: Callable[..., Run], tmp_path: Path) -> None:
    made = do_run(
        "structured_qat.yaml",
        tmp_path / "run",
        *(
            "data.lookback=8",
            "data.horizon=2",
            "model.hidden=8",
            "model.heads=2",
            "model.knots=8",
            "train.epochs=1",
            "train.batch_size=128",
        ),
        *("quant.method=ptq", "quant.qat=null", "quant.calibration_windows=64", "quant.sensitivity=true", "quant.loss_budget=0.01"),
        *("quant.keep_float=[attention.query]", "quant.calibration=percentile", "quant.percentile=70", "export.formats=[int8_ptq]"),
    )
    found = made.summary["quant"]
    names = [layer["layer"] for layer in found["sensitivity"]]
    assert len(names) == len(set(names)) and "attention.query" not in names and {"heads.linear", "encoder"} <= set(names)
    assert found["windows"] == 64 and found["loss"] <= 1.01 * found["float_loss"] < found["quantized_loss"]
    assert found["kept_float"] and set(found["kept_float"]) < set(names)
    assert json.loads((made.folder / MEASURED).read_text()) == found

    model = made.summary["models"]["int8_ptq"]
    assert set(model["kept_float"]) == {"attention.query", *found["kept_float"]}
    assert read_metadata(model["path"]).kept_float == tuple(model["kept_float"])
    assert "sensitivity: 21 layers on 64 training windows" in made.printed
    assert "Each layer quantized alone" in made.printed and "and 11 that lose less" in made.printed
    assert f"; with {', '.join(found['kept_float'])} in floating point " in made.printed
    report = (made.folder / "report.html").read_text(encoding="utf-8")
    assert "Sensitivity" in report and "on 64 training windows" in report and "The loss budget 1.000% above FP32" in report
