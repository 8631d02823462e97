"""The main job measured: what `make run` takes and leaves, beside the published form of the same sizes.

    python benchmarks/main_job.py                                              # recipes/qat_int8.yaml on the shipped bars
    python benchmarks/main_job.py --name es data.path=../shared/data/es/ESZ3_1m.parquet

Writes benchmarks/results/main_job_<name>.json: a row for each exported model, and the run's own.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import write_result

from tftq.data.load import load_datasets
from tftq.export.graph import build_forecaster
from tftq.jobs.run import run
from tftq.model.tft import TemporalFusionTransformer
from tftq.recipe.load import load_recipe
from tftq.serve.measure import measure
from tftq.train.build import architecture_of


def paper_row(recipe: Any, folder: Path) -> dict[str, Any]:
    """The published form of the recipe's sizes, untrained, as an FP32 file: what there was before."""
    data = load_datasets(recipe.data)
    architecture = replace(architecture_of(recipe.model), form="paper")
    model = TemporalFusionTransformer(data.train.inputs, data.scaling, data.target_scaling, architecture).eval()
    path = folder / "paper.onnx"
    path.write_bytes(build_forecaster(model, "fp32", data.train.target_unit))
    cost = measure(path, threads=2).cost
    return {
        "model": "paper form, FP32, untrained",
        "file_mb": path.stat().st_size / 1e6,
        "resident_mb": cost["rss_bytes"] / 1e6,
        "latency_ms": cost["latency_ms"],
    }


def main() -> None:
    """Run the recipe and write what it came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/qat_int8.yaml"))
    parser.add_argument("--name", default="small")
    parser.add_argument("override", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe(arguments.recipe, [*arguments.override, f"out={folder}/run", "export.publish=false"])
        start = time.perf_counter()
        summary = run(recipe).as_dict()
        seconds = time.perf_counter() - start
        paper = paper_row(recipe, Path(folder))
    naive = summary["val"]["baseline_q_risk"]["0.5"]
    rows = [paper]
    for name, model in summary["models"].items():
        rows.append(
            {
                "model": name,
                "file_mb": model["file_bytes"] / 1e6,
                "resident_mb": model["rss_bytes"] / 1e6,
                "latency_ms": model["latency_ms"],
                "loss": model["loss"],
                "q_risk": model["q_risk"],
                "naive_p50": naive,
                "coverage": model["coverage"],
                "int8_weight_share": model["int8_weight_share"],
                "max_abs_diff": model["max_abs_diff"],
            }
        )
    memory = summary["memory"]
    rows.append(
        {
            "run": recipe.name,
            "data": recipe.data.path.name,
            "total_s": seconds,
            "updates": summary["updates"],
            "samples_per_s": summary["samples_per_s"],
            "peak_bytes": memory["peak_bytes"],
            "planned_peak_bytes": memory["planned_peak_bytes"],
            "checkpoints_recorded": memory["checkpoints_recorded"],
            "checkpoints_expected": memory["checkpoints_expected"],
        }
    )
    write_result(f"main_job_{arguments.name}", rows)


if __name__ == "__main__":
    main()
