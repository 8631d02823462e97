"""The idea the house rests on, checked: the same loop trains the knots, the folded and the paper form, side by side.

    python benchmarks/forms.py                                  # test_data/structured.parquet
    python benchmarks/forms.py vic_electricity --data ../shared/data/bench/vic_electricity.csv

    python benchmarks/forms.py es --forms knots lean --seeds 1 2 3 --name lean_es

Writes benchmarks/results/<name>.json: q-risks, seconds and peak of tensor bytes of each form and seed, and of the table.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import torch
from common import write_result

from tftq.data.load import load_datasets
from tftq.data.windows import Datasets, Windows
from tftq.evaluate.precision import Name, Precision
from tftq.evaluate.windows import naive_q_risk, validate
from tftq.memory.timeline import MemoryRecorder
from tftq.model.tabulate import tabulate
from tftq.model.tft import Architecture, Form, TemporalFusionTransformer
from tftq.recipe.schema import BarsRecipe, OptimizerRecipe, ScheduleRecipe, TableRecipe, TrainRecipe, ValidateRecipe
from tftq.train.context import TrainingData, Workplace
from tftq.train.device import seed_everything
from tftq.train.stages import float_settings
from tftq.train.trainer import Trainer

CASES: dict[str, dict[str, Any]] = {
    "structured": {
        "data": {
            **{
                "kind": "table",
                "time": "time",
                "target": "sales",
                "known": ("promotion",),
                "observed": ("visits",),
                "calendar": ("hour", "weekday"),
            },
            **{"season": 168, "lookback": 48, "horizon": 24},
        },
        "path": Path("test_data/structured.parquet"),
        "hidden": 32,
        "updates": 400,
        "batch": 32,
    },
    "vic_electricity": {
        "data": {
            **{"kind": "table", "time": "Time", "target": "Demand", "known": ("Temperature", "Holiday")},
            **{
                "calendar": ("hour", "weekday", "day_of_year"),
                "season": 336,
                "lookback": 96,
                "horizon": 48,
                "test": 0.2,
                "validation": 0.1,
            },
        },
        "path": Path("../shared/data/bench/vic_electricity.csv"),
        "hidden": 64,
        "updates": 1000,
        "batch": 64,
    },
    "es": {
        "data": {"kind": "bars", "lookback": 60, "horizon": 10},
        "path": Path("../shared/data/es/ESZ3_1m.parquet"),
        "hidden": 64,
        "updates": 400,
        "batch": 32,
    },
}
# What is trained: the form and its gates, the number format and the optimizer. `lean` is what recipes/es225_lean.yaml does.
FORMS: dict[str, tuple[Form, bool, Name, Literal["adamw", "adamw8bit"]]] = {
    "knots": ("knots", False, "fp32", "adamw"),
    "lean": ("knots", True, "bf16", "adamw8bit"),
    "folded": ("folded", False, "fp32", "adamw"),
    "paper": ("paper", False, "fp32", "adamw"),
}


class Part:
    """The first windows of a shuffled order, so that one epoch is exactly so many updates."""

    def __init__(self, windows: Windows, count: int) -> None:
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        self.windows = windows
        self.order = order.repeat(count // len(windows) + 1)[:count]

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, indices: Any) -> Any:
        return self.windows.batch(self.order[torch.as_tensor(indices)])


def train_form(case: dict[str, Any], data: Datasets, name: str, seed: int, lr: float) -> dict[str, Any]:
    """Train one form with one seed and measure it, and its table, on the held-out part."""
    seed_everything(seed)
    device = torch.device("cpu")
    form, shared, number_format, optimizer = FORMS[name]
    architecture = Architecture(case["hidden"], 4, 1, 0.1, (0.1, 0.5, 0.9), form, 64, shared)
    settings = TrainRecipe(
        precision=number_format,
        epochs=1,
        batch_size=case["batch"],
        optimizer=OptimizerRecipe(name=optimizer, lr=lr),
        schedule=ScheduleRecipe(),
    )
    held_out = data.test or data.validation
    with tempfile.TemporaryDirectory() as folder:
        watch = MemoryRecorder(Path(folder) / "memory.jsonl", device)
        with watch.recording():
            model = TemporalFusionTransformer(data.train.inputs, data.scaling, data.target_scaling, architecture)
            part = Part(data.train, case["updates"] * case["batch"])
            trainer = Trainer(
                model,
                TrainingData(part, Part(data.validation, 512)),
                float_settings(settings, ValidateRecipe(), seed=seed),
                Workplace(Path(folder), device, watch.timeline),
            )
            start = time.perf_counter()
            trainer.fit()
            seconds = time.perf_counter() - start
        peak = watch.timeline.peak_bytes
    precision = Precision("fp32", device)
    found = validate(model, held_out, 256, precision)
    table, report = tabulate(model)
    tabulated = validate(table, held_out, 256, precision)
    return {
        "form": name,
        "seed": seed,
        "lr": lr,
        "updates": case["updates"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_s": round(seconds, 1),
        "peak_bytes": peak,
        "loss": found.loss,
        "q_risk": found.q_risk,
        "coverage": found.coverage,
        "table_loss": tabulated.loss,
        "table_knots_median": statistics.median(line.knots for line in report),
        "table_error_max": max(line.error for line in report),
    }


def main() -> None:
    """Train every form asked for and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=CASES, default="structured")
    parser.add_argument("--data", type=Path, help="the table, where it is not in its usual place")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--updates", type=int)
    parser.add_argument("--name", help="of the result; forms_<case> where not said")
    parser.add_argument("--lr", type=float, default=3e-3)
    arguments = parser.parse_args()
    case = dict(CASES[arguments.case])
    case["updates"] = arguments.updates or case["updates"]
    kind = BarsRecipe if case["data"]["kind"] == "bars" else TableRecipe
    data = load_datasets(kind(path=arguments.data or case["path"], **case["data"]))
    naive = naive_q_risk(data.test or data.validation)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        for form in arguments.forms:
            rows.append({**train_form(case, data, form, seed, arguments.lr), "naive_p50": naive})
            print(rows[-1], flush=True)
            write_result(arguments.name or f"forms_{arguments.case}", rows)


if __name__ == "__main__":
    main()
