"""A made-up run folder, small enough to know every figure of."""

import json
from pathlib import Path
from typing import Any

MIB = 2**20
RECIPE = """\
name: {name}
seed: 7
data: {{kind: table, path: /data/{name}.csv, lookback: 12, horizon: 3, season: 24}}
memory: {{budget_mb: 512}}
"""


def epoch(number: int, train: float, validation: float | None, **rates: float) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {"epoch": number, "train_loss": train, "lr": rates, "val": None if validation is None else {"loss": validation}}


def record(stage: str, number: int, phase: str, peak: int | None, error: str | None = None) -> dict[str, Any]:
    """A line of memory.jsonl; a quarter of a peak is parameters, the rest activations."""
    made_of = None
    if peak is not None:
        made_of = {"parameters": peak // 4, "gradients": 0, "optimizer": 0, "activations": 3 * peak // 4, "workspace": 0, "left_over": 0}
    common = {"stage": stage, "epoch": number, "phase": phase, "source": "counter", "peak": peak, "rss": 900 * MIB, "error": error}
    return {**common, "components": None, "peak_components": made_of}


def model(risk: float, size: int) -> dict[str, Any]:
    """A model's entry in summary.json."""
    return {
        "path": "m.onnx",
        "file_bytes": size,
        "loss": 0.125,
        "q_risk": {"0.1": 0.11, "0.5": risk, "0.9": 0.19},
        "q_risk_by_step": {"0.1": [0.1, 0.12], "0.5": [risk - 0.01, risk + 0.01], "0.9": [0.18, 0.2]},
        "coverage": 0.81,
        "max_abs_diff": 3.5e-7,
        "rss_bytes": 12_300_000,
        "latency_ms": 1.25,
        "load_ms": 40.4,
        "int8_weight_share": 0.875,
        "int4_weight_share": 0.0,
        "kept_float": [],
        "nodes": {"CPUExecutionProvider": {"Add": 7, "Gemm": 5}},
    }


def summary(name: str = "made_up", risk: float = 0.4, naive: float = 0.8) -> dict[str, Any]:
    """summary.json of a run whose last model has a given P50 risk beside the naive one."""
    return {
        "name": name,
        "status": "ok",
        "device": "cpu",
        "seed": 7,
        "updates": 1234,
        "skipped_updates": 0,
        "best_epoch": 2,
        "samples_per_s": 321.4,
        "target": "demand",
        "val": {"q_risk": {"0.1": 0.1, "0.5": 0.39, "0.9": 0.2}, "baseline_q_risk": {"0.5": naive}, "coverage": 0.8},
        "memory": {
            "source": "counter",
            "peak_bytes": 40 * MIB,
            "checkpoints_expected": 4,
            "checkpoints_recorded": 4,
            "missing": [],
            "planned_peak_bytes": 50 * MIB,
        },
        "models": {"fp32": model(0.395, 4_000_000), "int8_qat": model(risk, 1_000_000)},
        "notes": ["train: 100 windows", "3 rows dropped: empty target"],
    }


def proof(integer: int, floating: int) -> dict[str, Any]:
    """An export.json."""
    checks = [
        {"name": "quantiles out of order", "measured": 0.0, "allowed": "== 0", "passed": True},
        {"name": "distance from torch", "measured": 1.5e-7, "allowed": "<= 0.0001", "passed": True},
    ]
    products = {"QGemm": integer} if integer else {}
    return {"checks": checks, "census": {"integer_products": products, "float_weight_products": floating, "kept_float": {}}}


def write_folder(folder: Path, found: dict[str, Any], *, qat: bool = True, exports: bool = True) -> Path:
    """Write a run's files."""
    (folder / "summary.json").write_text(json.dumps(found))
    (folder / "recipe.yaml").write_text(RECIPE.format(name=found["name"]))
    env = {
        **{"started": "2024-01-08T07:10:00Z", "platform": "Linux", "cpu_count": 2, "packages": {"torch": "2.13.0"}},
        **{"cuda": None, "git": {"commit": "abc123", "dirty": True}},
    }
    (folder / "env.json").write_text(json.dumps(env))
    float_epochs = [epoch(1, 0.5, None, head=0.002, others=0.001), epoch(2, 0.25, 0.3, head=0.0002, others=0.0001)]
    lines(folder / "metrics.jsonl", float_epochs)
    records = [record("train", 1, "EPOCH_START", 8 * MIB), record("train", 1, "TRAIN_BATCH_0", 40 * MIB)]
    if qat:
        (folder / "qat").mkdir()
        lines(folder / "qat" / "metrics.jsonl", [epoch(1, 0.24, 0.29, head=0.00005, others=0.00005)])
        records += [record("qat", 1, "EPOCH_START", 4 * MIB), record("qat", 1, "VALIDATION_END", 20 * MIB)]
    lines(folder / "memory.jsonl", records)
    if exports:
        (folder / "exports").mkdir()
        for kind, products in {"fp32": (0, 20), "int8_qat": (19, 1)}.items():
            (folder / "exports" / f"{kind}.export.json").write_text(json.dumps(proof(*products)))
    return folder


def lines(path: Path, entries: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
