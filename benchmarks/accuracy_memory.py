"""What each number format costs in accuracy and saves in memory: the same recipe run by run, on three tables and several seeds.

    python benchmarks/accuracy_memory.py                                   # everything; hours on two cores
    python benchmarks/accuracy_memory.py --cases structured --seeds 1
    python benchmarks/accuracy_memory.py --table                           # run nothing: measure costs, print and plot what is there

Every run is one of `tftq.jobs.run`, so each figure is of an ONNX file that passed the gate, on the test windows (the last fifth). Rows that
are in benchmarks/results/accuracy_memory.json already are not run again; each is written as soon as it is there. In the end the files of
each table's first seed are measured one after the other, so that load on the machine while training does not count. Beside it, a plot.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, commit, write_result
from matplotlib import pyplot

from tftq.jobs.run import run
from tftq.recipe.load import load_recipe
from tftq.serve.measure import measure

NAME = "accuracy_memory"
RECIPE = Path("recipes/structured_qat.yaml")
BENCH = Path("../shared/data/bench")
RUNS_FOLDER = Path("runs") / NAME  # <case>/<seed>/<run>; what lies there already is taken from there
PROCESSES = 3  # fresh ones to a cost
SPLIT = ("data.validation=0.1", "data.test=0.2")
# What of the recipe is another for each table.
CASES: dict[str, tuple[str, ...]] = {
    "structured": ("train.epochs=4", "quant.qat.epochs=2"),
    "ETTh1": (
        *(f"data.path={BENCH}/ETTh1.csv", "data.time=date", "data.target=OT", "data.known=[]"),
        *("data.observed=[HUFL, HULL, MUFL, MULL, LUFL, LULL]", "data.season=24", "data.lookback=96", "data.horizon=24"),
        *("train.epochs=2", "train.batch_size=64", "train.optimizer.lr=1e-3", "quant.qat.epochs=1", "quant.qat.lr=1e-5"),
    ),
    "vic_electricity": (
        *(f"data.path={BENCH}/vic_electricity.csv", "data.time=Time", "data.target=Demand", "data.known=[Temperature, Holiday]"),
        *("data.observed=[]", "data.calendar=[hour, weekday, day_of_year]", "data.season=336", "data.lookback=96", "data.horizon=48"),
        *("train.epochs=1", "train.batch_size=64", "quant.qat.epochs=1", "quant.qat.lr=3e-4"),
    ),
}
# What is trained for each seed, and what each of its exports is called here.
RUNS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "int8": (
        ("export.formats=[fp32, fp16, int8_ptq, int8_qat]",),
        {"fp32": "fp32", "fp16": "fp16", "int8_ptq": "int8_ptq", "int8_qat": "int8_qat"},
    ),
    "int4": (("quant.weights=int4", "export.formats=[int4_ptq, int4_qat]"), {"int4_ptq": "int4_ptq", "int4_qat": "int4_qat"}),
    "bf16": (("train.precision=bf16", "quant=null", "export.formats=[fp32]"), {"fp32": "bf16"}),
    "pruned": (("export.formats=[fp32, int8_qat]",), {"fp32": "pruned_fp32", "int8_qat": "pruned_int8_qat"}),
}
COSTS = {
    "file_bytes": (1e6, "file, MB"),
    "rss_bytes": (1e6, "resident memory of the session, MB"),
    "latency_ms": (1, "latency at batch 1, ms"),
}
KEPT = {"structured": 5, "ETTh1": 8, "vic_electricity": 6}  # history variables of the pruned runs, of 7, 11 and 9
LIMITS = {"int8_ptq": 1.005, "int8_qat": 1.002, "int4_qat": 1.01}  # of the quantile loss, as a multiple of FP32's


def rows_of(case: str, seed: int, name: str) -> list[dict[str, Any]]:
    """Run a recipe and take a row of each model that it exports."""
    options, exports = RUNS[name]
    pruned = [f"quant.prune.keep={KEPT[case]}"] if name == "pruned" else []
    folder = RUNS_FOLDER / case / str(seed) / name
    recipe = load_recipe(RECIPE, [*SPLIT, *CASES[case], *options, *pruned, f"seed={seed}", f"out={folder}", "export.publish=false"])
    summary = run(recipe, resume=folder.exists()).as_dict()
    rows = []
    for kind, label in exports.items():
        model = summary["models"][kind]
        rows.append(
            {
                **{"case": case, "seed": seed, "run": name, "format": label, "commit": commit()},
                **{key: model["test"][key] for key in ("loss", "q_risk", "q_risk_by_step", "coverage", "crossing_rate", "windows")},
                **{"file_bytes": model["file_bytes"], "path": str(folder / "exports" / f"{kind}.onnx")},
                "peak_bytes": summary["memory"]["peak_bytes"],
            }
        )
    return rows


def measure_costs(rows: list[dict[str, Any]]) -> None:
    """Add resident memory and latency to every row: those of the file of its table and format of the least seed."""
    by_file: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        by_file.setdefault((row["case"], row["format"]), row)
    for (case, label), first in by_file.items():
        if not Path(first["path"]).exists():
            print(f"{case} {label}: not measured again, {first['path']} is not there any more")
            continue
        found = [measure(Path(first["path"]), threads=2).cost for _ in range(PROCESSES)]
        costs = {key: statistics.median(one[key] for one in found) for key in ("rss_bytes", "latency_ms")}
        for row in rows:
            if (row["case"], row["format"]) == (case, label):
                row |= costs


def summarise(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each format on each table beside FP32 of the same seed: medians over the seeds."""
    by_run = {(row["case"], row["seed"], row["format"]): row for row in rows}
    found = []
    for case, label in dict.fromkeys((case, label) for case, _, label in by_run):
        pairs = [(row, by_run[case, seed, "fp32"]) for (c, seed, f), row in by_run.items() if (c, f) == (case, label)]
        ratios = [ours["loss"] / float32["loss"] for ours, float32 in pairs]
        found.append(
            {
                **{"case": case, "format": label, "seeds": len(pairs)},
                **{"loss_ratio": statistics.fmean(ratios), "loss_ratio_least": min(ratios), "loss_ratio_most": max(ratios)},
                "q_risk_ratio": {level: _ratio(pairs, "q_risk", level) for level in pairs[0][0]["q_risk"]},
                "worst_step_ratio": max(_ratio(pairs, "q_risk_by_step", "0.5", step) for step in range(_horizon(pairs))),
                "coverage_points": 100 * statistics.fmean(ours["coverage"] - float32["coverage"] for ours, float32 in pairs),
                "crossings": max(ours["crossing_rate"] for ours, _ in pairs),
                **{key: statistics.median(ours[key] for ours, _ in pairs) for key in ("file_bytes", "rss_bytes", "latency_ms")},
            }
        )
    return found


def _ratio(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], *keys: str | int) -> float:
    """The mean ratio of one figure of two rows."""

    def figure(row: Any) -> float:
        for key in keys:
            row = row[key]
        return float(row)

    return statistics.fmean(figure(ours) / figure(float32) for ours, float32 in pairs)


def _horizon(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    return len(pairs[0][0]["q_risk_by_step"]["0.5"])


def print_table(found: Iterable[dict[str, Any]]) -> None:
    """The summary, a line for each format on each table."""
    print(f"{'table':16}{'format':10}{'seeds':>6}{'loss':>8}{'least':>8}{'most':>8}{'limit':>7}{'cover':>7}{'MB':>7}{'MB rss':>8}{'ms':>7}")
    for row in found:
        limit = LIMITS.get(row["format"])
        print(
            f"{row['case']:16}{row['format']:10}{row['seeds']:6}{row['loss_ratio']:8.4f}{row['loss_ratio_least']:8.4f}"
            f"{row['loss_ratio_most']:8.4f}{'' if limit is None else limit:>7}{row['coverage_points']:+7.1f}"
            f"{row['file_bytes'] / 1e6:7.2f}{row['rss_bytes'] / 1e6:8.1f}{row['latency_ms']:7.2f}"
        )


def plot(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Loss against each cost, a row of charts for each table; the line joins what nothing beats in both."""
    cases = list(dict.fromkeys(row["case"] for row in found))
    figure, grid = pyplot.subplots(len(cases), len(COSTS), figsize=(13, 3.6 * len(cases)), squeeze=False, layout="constrained")
    for case, charts in zip(cases, grid, strict=True):
        rows = [row for row in found if row["case"] == case]
        for chart, (key, (unit, title)) in zip(charts, COSTS.items(), strict=True):
            points = [(row[key] / unit, row["loss_ratio"], row["format"]) for row in rows]
            front = [point for point in points if not any(_beats(other, point) for other in points)]
            chart.plot(*zip(*((x, y) for x, y, _ in sorted(front)), strict=True), color="tab:blue", alpha=0.4, linewidth=1.5)
            for x, y, label in points:
                best = (x, y, label) in front
                chart.plot(x, y, "o", color="tab:blue" if best else "tab:gray")
                chart.annotate(label, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
            chart.axhline(1, color="black", linewidth=0.6, linestyle=":")
            chart.set(xlabel=title)
            chart.margins(x=0.25, y=0.15)
        charts[0].set_ylabel(f"{case}\nquantile loss / FP32's")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _beats(one: tuple[float, float, str], other: tuple[float, float, str]) -> bool:
    """Whether one is no worse in cost and loss, and better in one of them."""
    return one[0] <= other[0] and one[1] <= other[1] and one[:2] != other[:2]


def read_rows() -> list[dict[str, Any]]:
    """What has been measured already."""
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def main() -> None:
    """Run what is missing, writing each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    rows = read_rows()
    wanted = [] if arguments.table else [(c, s, r) for s in arguments.seeds for c in arguments.cases for r in arguments.runs]
    for case, seed, name in wanted:
        if any((row["case"], row["seed"], row["run"]) == (case, seed, name) for row in rows):
            continue
        rows += rows_of(case, seed, name)
        write_result(NAME, rows)
    measure_costs(rows)
    write_result(NAME, rows)
    found = summarise(rows)
    print_table(found)
    plot(found, RESULTS / f"{NAME}.png")


if __name__ == "__main__":
    main()
