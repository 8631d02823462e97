"""The report of a made-up run: every figure is on it, nothing breaks it, and it does not flatter."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.report.folder import MIB, epoch, lines, model, record, summary, write_folder
from tests.report.reader import Reader
from tftq.quant.sensitivity import LayerSensitivity, Sensitivity
from tftq.report.forecaster import write_report


def read(folder: Path) -> Reader:
    page = write_report(folder).read_text(encoding="utf-8")
    reader = Reader(page)
    assert not reader.open, "left open"
    ElementTree.fromstring(page)  # well-formed to the letter
    return reader


def cells(folder: Path) -> dict[str, list[str]]:
    """The first cell of each row of the page's tables -> the others."""
    root = ElementTree.fromstring(write_report(folder).read_text(encoding="utf-8"))
    rows = [["|".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return {row[0]: row[1:] for row in rows}


def test_the_page_shows_every_figure(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary())
    text = read(folder).text
    for figure in (
        "The model beats the naive forecast",
        "int8_qat: on the validation windows its P50 q-risk is 0.4000, against 0.8000 of the naive forecast, the value 24 rows earlier "
        "(50.0% below). Its 80% interval holds 81% of the outcomes: about right.",
        "Status ok: 2 exported models passed the gate; 4 of 4 memory records.",
        "q-risk = 2·Σ pinball / Σ|y|",
        "Peak 40.0 MiB by the byte counter, planned 50.0 MiB, budget 512 MiB. 4 of 4 records.",
        "3 rows dropped: empty target",
        "1,234 updates at 321 windows/s on cpu, seed 7, begun 2024-01-08T07:10:00Z",
        "The weights of epoch 2 were kept.",
        "/data/made_up.csv",
        "budget_mb: 512",  # the recipe
    ):
        assert figure in text
    found = cells(folder)
    assert found["file"] == ["4.00 MB", "1.00 MB|25.0%"]
    assert found["P10 q-risk"] == ["0.1100", "0.1100"] and found["P50 q-risk"] == ["0.3950", "0.4000"]
    assert found["naive P50 q-risk"] == ["0.8000", "0.8000"] and found["P50 against naive"] == ["-50.6%", "-50.0%"]
    assert found["integer products"] == ["0 of 20", "19 of 20"] and found["INT8 share of weights"] == ["87.5%", "87.5%"]
    assert found["load"][0] == "40 ms" and found["coverage"][0] == "81.0%" and found["largest difference from torch"][0] == "3.5e-07"
    assert found["distance from torch"] == ["1.5e-07|<= 0.0001", "passed"]
    assert "no run fails for them; a run keeps within " in text
    assert "What the peak of train was made of" in text and "What the peak of qat was made of" in text
    assert found["forward"] == ["15.0", "200.0", "within"]  # of qat, which comes last
    assert found["backward"] == ["0.0", "200.0", "within"] and found["peak"] == ["20.0", "512.0", "within"]
    assert found["qat VALIDATION_END"] == ["5.0", "0.0", "0.0", "15.0", "0.0", "0.0", "20.0"]
    assert found["train TRAIN_BATCH"] == ["10.0", "0.0", "0.0", "30.0", "0.0", "0.0", "40.0"]
    assert found["q1"] == ["0.24", "0.29", "5e-05", "5e-05"] and found["1"] == ["0.5", "–", "0.002", "0.001"]
    assert "P50 q-risk at each step" in text and "int8_qat, 2: 0.41" in text and "fp32, 1: 0.385" in text
    assert found["git"] == ["commit abc123, dirty yes"] and found["cuda"] == ["none"] and found["torch"] == ["2.13.0"]


def test_models_on_a_gpu_are_shown_with_what_ran_where(tmp_path: Path) -> None:
    found = summary()
    nodes = {"CPUExecutionProvider": {"Mul": 1, "Concat": 3, "Reshape": 3}, "CUDAExecutionProvider": {"Gemm": 30, "Add": 12}}
    cost = {"latency_ms": 0.75, "device_bytes": 14_200_000, "context_bytes": 300_000_000, "device_bytes_are": "of this process"}
    found["models"]["fp16"] = {**model(0.4, 2_000_000), "gpu": {"cost": cost, "nodes": nodes}}
    found["models"]["fp16_int8"] = {**model(0.4, 1_000_000), "gpu": {"skipped": "the run was on the CPU"}}
    folder = write_folder(tmp_path, found)
    text, rows = read(folder).text, cells(folder)
    assert rows["nodes of the graph"] == 4 * ["all 12 on CPU"]
    assert rows["on the GPU: memory of the session"] == ["–", "–", "14.2 MB", "–"]
    assert rows["on the GPU: latency, batch 1"] == ["–", "–", "0.75 ms", "–"]
    assert rows["on the GPU: nodes"][2] == "CUDA 42; CPU 7: Concat × 3, Reshape × 3, Mul"
    assert "fp16_int8 was not measured on a GPU: the run was on the CPU." in text
    assert "Memory of fp16 on the GPU is of this process, beside the 300 MB of CUDA itself." in text
    cost |= {"device_bytes": None, "context_bytes": None, "device_bytes_are": "not told by the driver: MIG"}
    (folder / "summary.json").write_text(json.dumps(found))
    assert cells(folder)["on the GPU: memory of the session"][2] == "unknown"
    assert "Memory of fp16 on the GPU is not told by the driver: MIG." in read(folder).text


def test_fp16_int8_is_not_the_headline(tmp_path: Path) -> None:
    found = summary()
    found["models"]["fp16_int8"] = model(0.01, 1_000_000)
    assert "int8_qat: on the validation windows its P50 q-risk is 0.4000" in read(write_folder(tmp_path, found)).text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    page = write_report(write_folder(tmp_path, summary())).read_text(encoding="utf-8")
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|http", page)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    found = summary()
    found |= {"target": "<b>demand</b>", "notes": ["</li></ul><script>alert('&')</script>"]}
    folder = write_folder(tmp_path, found)
    lines(folder / "metrics.jsonl", [epoch(1, 0.5, 0.4, **{'<b>"a"</b>': 0.001})])
    reader = read(folder)
    assert "Forecasts of the <b>demand</b>" in reader.text and "</li></ul><script>alert('&')</script>" in reader.text
    assert '<b>"a"</b>' in reader.text and "script" not in reader.tags


@pytest.mark.parametrize(
    ("risk", "title", "words"),
    [
        (0.88, "The model does not beat the naive forecast", "(10.0% above)"),
        (0.808, "The model is level with the naive forecast", "(1.0% above)"),
        (0.796, "The model is level with the naive forecast", "(0.5% below)"),
        (0.6, "The model beats the naive forecast", "(25.0% below)"),
    ],
)
def test_the_headline_is_honest(tmp_path: Path, risk: float, title: str, words: str) -> None:
    text = read(write_folder(tmp_path, summary(risk=risk))).text
    assert title in text and words in text


def test_the_streaming_pair_is_a_column_but_not_the_headline(tmp_path: Path) -> None:
    found = summary()
    found["models"]["stream"] = {**found["models"]["int8_qat"], "file_bytes": 1_500_000, "latency_ms": 2.5}
    folder = write_folder(tmp_path, found)
    text = read(folder).text
    assert "int8_qat: on the validation windows" in text and "3 exported models passed the gate" in text
    assert "stream is two files, counted together: its latency is that of a new bar" in text
    assert cells(folder)["file"][-1] == "1.50 MB|37.5%"
    without = tmp_path / "without"
    without.mkdir()
    assert "stream is two files" not in read(write_folder(without, summary())).text


def test_layers_kept_in_float_are_counted_and_named(tmp_path: Path) -> None:
    found = summary()
    found["models"]["int8_qat"]["kept_float"] = ["heads.linear", "attention.query"]
    folder = write_folder(tmp_path, found)
    path = folder / "exports" / "int8_qat.export.json"
    made = json.loads(path.read_text())
    made["census"]["kept_float"] = {"heads.linear": 96, "attention.query": 256}
    path.write_text(json.dumps(made))
    assert cells(folder)["layers kept in floating point"] == ["0", "2"]
    assert "Kept in floating point: heads.linear, attention.query." in read(folder).text
    without = tmp_path / "without"
    without.mkdir()
    assert "floating point" not in read(write_folder(without, summary())).text


def test_sensitivity_of_layers_is_shown_if_it_was_measured(tmp_path: Path) -> None:
    layers = (
        LayerSensitivity("heads.linear", 1_096, 47.26, 42.81, 0.25, 0.25),
        LayerSensitivity("encoder", 8_192, 46.0, None, 0.19998, -0.0001),
    )
    found = Sensitivity(256, 0.2, 0.3, layers, 0.01, ("heads.linear",), 0.2002)
    folder = write_folder(tmp_path, summary() | {"quant": found.as_dict()})
    text = read(folder).text
    assert "Quantile loss on 256 training windows: 0.20000 in FP32, 0.30000 with everything quantized (+50.000%)." in text
    assert "everything quantized +50.000%; with heads.linear in floating point +0.100%" in text
    assert cells(folder)["heads.linear"] == ["1,096", "47.3", "42.8", "0.25000", "+25.000%", "FP32"]
    assert cells(folder)["encoder"] == ["8,192", "46.0", "–", "0.19998", "-0.010%", ""]
    (tmp_path / "summary.json").write_text(json.dumps(summary() | {"quant": Sensitivity(9, 0.2, 0.2, (), 0.01, (), 0.2).as_dict()}))
    text = read(folder).text
    assert "everything quantized +0.000%, so nothing stays in floating point." in text and "Each layer quantized alone" not in text
    (tmp_path / "summary.json").write_text(json.dumps(summary()))
    assert "Sensitivity" not in read(folder).text


@pytest.mark.parametrize(("coverage", "fit"), [(0.9, "90% of the outcomes: too wide"), (0.7, "70% of the outcomes: too narrow")])
def test_an_interval_of_the_wrong_width_is_called_so(tmp_path: Path, coverage: float, fit: str) -> None:
    found = summary()
    found["models"]["int8_qat"]["coverage"] = coverage
    assert fit in read(write_folder(tmp_path, found)).text


def test_a_naive_forecast_without_error_is_no_divisor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary(naive=0.0))
    assert "against 0.0000 of the naive forecast, the value 24 rows earlier." in read(folder).text
    assert cells(folder)["P50 against naive"] == ["–", "–"]


def test_one_quantile_makes_no_interval(tmp_path: Path) -> None:
    found = summary()
    for entry in (found["val"], *found["models"].values()):
        entry["q_risk"] = {"0.5": 0.4}
    assert "interval" not in read(write_folder(tmp_path, found)).text


def test_without_qat_and_without_proofs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary(), qat=False, exports=False)
    text = read(folder).text
    assert "QAT" not in text and "No exported model, so nothing was checked." in text
    assert cells(folder)["integer products"] == ["–", "–"]


def test_without_models_the_trained_one_counts(tmp_path: Path) -> None:
    text = read(write_folder(tmp_path, summary() | {"models": {}}, exports=False)).text
    assert "the trained model: on the validation windows its P50 q-risk is 0.3900" in text and "no model was exported" in text


def test_missing_memory_records_are_named(tmp_path: Path) -> None:
    found = summary(risk=0.1)
    found["memory"] |= {"peak_bytes": None, "checkpoints_recorded": 1, "missing": ["train epoch 1 TRAIN_BATCH_0: peak: <gone>"]}
    folder = write_folder(tmp_path, found, qat=False)
    lines(folder / "memory.jsonl", [record("train", 1, "EPOCH_START", MIB), record("train", 1, "TRAIN_BATCH_0", None, "peak: <gone>")])
    page = write_report(folder).read_text(encoding="utf-8")
    text = read(folder).text
    assert "train epoch 1 TRAIN_BATCH_0: peak: <gone>" in text and "1 of 4 memory records, see Memory" in text
    assert text.count("not measured") == 3 and 'class="gap"' in page and 'class="verdict bad"' in page
    assert cells(folder)["train TRAIN_BATCH"] == 7 * ["–"]


def test_resident_memory_where_tensors_are_not_counted(tmp_path: Path) -> None:
    found = summary()
    found["memory"]["source"] = "rss"
    folder = write_folder(tmp_path, found, qat=False)
    lines(folder / "memory.jsonl", [record("train", 1, "EPOCH_START", None) | {"source": "rss"}])
    assert "by the process as a whole" in read(folder).text and "not broken down" in read(folder).text
    assert cells(folder)["parameters"] == ["–", "300.0", "not measured"]


def test_a_budget_within_sight_is_drawn(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary())
    assert "budget 512<" not in write_report(folder).read_text(encoding="utf-8")  # ten times the planned peak
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("512", "80"))
    assert "budget 80<" in write_report(folder).read_text(encoding="utf-8")


def test_pruned_variables_are_listed(tmp_path: Path) -> None:
    found = summary()
    found["val"]["loss"] = 0.2
    found["prune"] = {
        "kept": {"price": 0.75, "hour": 0.125},
        "dropped": {"noise": 0.1},
        "start_loss": 0.3,
        "best_epoch": 0,
        "val": {"loss": 0.3},
    }
    folder = write_folder(tmp_path, found)
    rows, text = cells(folder), read(folder).text
    assert rows["before, 3 history variables"] == ["0.20000"] and rows["right after, 2 of them kept"] == ["0.30000"]
    assert rows["trained on: no epoch was better"] == ["0.30000"] and rows["price"] == ["75.00%"]
    assert "The kept ones had 87.5% of the selection weight." in text and "price 75.00%, hour 12.50%" in text
    assert "The 1 that were left out" in text and "noise 10.00%" in text


def test_skipped_updates_are_shown(tmp_path: Path) -> None:
    assert "5 FP16 updates overflowed and were skipped." in read(write_folder(tmp_path, summary() | {"skipped_updates": 5})).text


def test_an_epoch_that_was_trained_twice_counts_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary(), qat=False)
    lines(folder / "metrics.jsonl", [epoch(1, 0.9, 0.9, all=1.0), epoch(1, 0.5, 0.4, all=1.0)])
    assert cells(folder)["1"] == ["0.5", "0.4", "1"] and "0.9" not in read(folder).text


def test_bars_and_a_check_that_failed(tmp_path: Path) -> None:
    found = summary() | {"models": {"fp32": model(0.9, 1)}}
    folder = write_folder(tmp_path, found)
    (folder / "recipe.yaml").write_text("data: {kind: bars, path: es.parquet, lookback: 60, horizon: 10}\nmemory: {budget_mb: 512}\n")
    path = folder / "exports" / "fp32.export.json"
    proof = json.loads(path.read_text())
    proof["checks"][0]["passed"] = False
    path.write_text(json.dumps(proof))
    assert "of the naive forecast, no change (12.5% above)" in read(folder).text
    assert cells(folder)["quantiles out of order"][-1] == "FAILED"


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, summary())
    before = write_report(folder).read_text(encoding="utf-8")
    (folder / "metrics.jsonl").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        write_report(folder)
    assert (folder / "report.html").read_text(encoding="utf-8") == before and not list(folder.glob("*.part"))
