"""What four models that answer every bar cost on a small machine: apart and together, in FP32 and INT8, beside what the first attempt took.

    python benchmarks/ensemble.py                  # the sizes of recipes/es225_ptq, mamba2_ref, ppo_ref and dqn_ref
    python benchmarks/ensemble.py --sizes small    # those of recipes/ptq_int8, mamba2, ppo and dqn

Each figure is the median of several fresh processes of two threads that run `tftq ensemble` over the newest of the shipped bars: by how
much the process grew from before its members were loaded until after the last bar, and the time of a bar, its features included, which a
process makes once for all its members (`members_latency_ms` is without them). Untrained weights: cost does not depend on them. Writes
benchmarks/results/ensemble_<sizes>.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import write_result
from members import RECIPES, ROOT, write_members

from tftq.io import sha256
from tftq.recipe.yaml import write_document
from tftq.serve.measure import measure, measure_pair

BARS = ROOT / "test_data" / "ES_FUT_small.parquet"
THREADS = 2
MB = 1_000_000
PLENTY_MB = 100_000
TARGET_MB, TARGET_MS = 120, 20  # of the four in INT8, together, with the streaming TFT
FIRST_ATTEMPT_TRAINING_MB = {"tft": 3096, "mamba2": 164, "ppo": 145, "dqn": 6}  # what training took; it measured no inference
STREAM = "stream"
Case = dict[str, Any]


def write_plans(folder: Path) -> None:
    """Write beside each model what its session takes in a fresh process, as a run does: what a budget is planned from."""
    plans = {path.stem: [path] for path in sorted(folder.glob("*.onnx"))}
    if "step" in plans:
        plans[STREAM] = [*plans.pop("step"), *plans.pop("forecast")]
    for name, models in plans.items():
        found = measure_pair(*models, threads=THREADS) if name == STREAM else measure(*models, threads=THREADS)
        proof = {"cost": found.cost, "sha256": [sha256(path) for path in models]}
        (folder / f"{name}.export.json").write_text(json.dumps(proof), encoding="utf-8")


def planned_mb(folders: Mapping[str, Path], formats: Mapping[str, str]) -> dict[str, float]:
    """What each member is planned to take."""
    proofs = {name: json.loads((folders[name] / f"{kind}.export.json").read_text(encoding="utf-8")) for name, kind in formats.items()}
    return {name: proof["cost"]["rss_bytes"] / MB for name, proof in proofs.items()}


def apart(folders: Mapping[str, Path], kind: str) -> list[Case]:
    """Each member in a process of its own."""
    return [{"formats": {name: kind}, "shared": False, "budget_mb": PLENTY_MB} for name in folders]


def together(folders: Mapping[str, Path]) -> list[Case]:
    """All in INT8 in one process, the TFT in one piece and streaming, with and without one allocator for all; on one core; in turn."""
    integer = dict.fromkeys(folders, "int8_ptq")
    streaming = integer | {"tft": STREAM}
    found = [{"formats": formats, "shared": shared, "budget_mb": PLENTY_MB} for formats in (integer, streaming) for shared in (False, True)]
    plans = planned_mb(folders, streaming)
    half = int(max(max(plans.values()), sum(plans.values()) / 2)) + 1
    return [*found, {**found[-1], "threads": 1}, {"formats": streaming, "shared": False, "budget_mb": half, "lazy": True}]


def run_once(case: Case, folders: Mapping[str, Path], bars: int) -> dict[str, Any]:
    """The summary of one run in a fresh process."""
    lazy = case.get("lazy")
    recipe = {
        "name": "measured",
        "members": {name: {"path": str(folders[name]), "format": kind} for name, kind in case["formats"].items()},
        "memory": {"budget_mb": case["budget_mb"], **({"residency": "lazy"} if lazy else {"shared_allocator": case["shared"]})},
        "threads": case.get("threads", THREADS),
        "data": {"path": str(BARS), "last": bars},
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "recipe.yaml"
        path.write_text(write_document(recipe), encoding="utf-8")
        command = [sys.executable, "-m", "tftq.cli", "ensemble", str(path), f"out={name}/run", "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case}: exit status {done.returncode}: {done.stderr.strip()}")
    summary: dict[str, Any] = json.loads(done.stdout)
    for member, found in summary["members"].items():
        if found["states"] != {"ok": bars}:
            raise SystemExit(f"{case}: {member} did not answer every bar: {found['states']}")
    return summary


def row_of(case: Case, folders: Mapping[str, Path], bars: int, processes: int) -> dict[str, Any]:
    """The median figures of a case."""
    runs = [run_once(case, folders, bars) for _ in range(processes)]

    def median(*keys: str) -> float:
        values = []
        for found in runs:
            value: Any = found
            for key in keys:
                value = value[key]
            values.append(float(value))
        return statistics.median(values)

    formats = case["formats"]
    own = {name: round(median("members", name, "latency_ms", "median"), 2) for name in formats}
    row: dict[str, Any] = {
        "what": what(case),
        "members": len(formats),
        "file_mb": round(sum(_file_bytes(folders[name], kind) for name, kind in formats.items()) / MB, 2),
        "planned_mb": round(sum(planned_mb(folders, formats).values()), 1),
        "resident_mb": round(median("memory", "resident_bytes") / MB, 1),
        "latency_ms": round(median("latency_ms", "median"), 2),
        "latency_p99_ms": round(median("latency_ms", "p99"), 2),
        "members_latency_ms": round(sum(own.values()), 2),
        "bars": bars,
        "threads": case.get("threads", THREADS),
        "processes": processes,
    }
    if len(formats) > 1:
        row["member_latency_ms"] = own
    if case.get("lazy"):
        row |= {
            "budget_mb": case["budget_mb"],
            "evictions": int(median("memory", "evictions")),
            "load_s": round(median("memory", "load_seconds"), 1),
        }
    return row


def beside(case: Case, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the reference sizes with what the first attempt took in training, and the row that targets are of with these."""
    (member, kind), *others = case["formats"].items()
    if not others:
        return {**row, "first_attempt_training_mb": FIRST_ATTEMPT_TRAINING_MB[member]} if kind == "fp32" else dict(row)
    if not case["shared"] or STREAM not in case["formats"].values() or "threads" in case:
        return dict(row)
    reached = row["resident_mb"] <= TARGET_MB and row["latency_ms"] <= TARGET_MS
    return {**row, "target_resident_mb": TARGET_MB, "target_latency_ms": TARGET_MS, "reached": reached}


def what(case: Case) -> str:
    """A case in words."""
    formats = case["formats"]
    streaming = ", streaming TFT" if formats.get("tft") == STREAM and len(formats) > 1 else ""
    kind = "FP32" if "fp32" in formats.values() else "INT8"
    if len(formats) == 1:
        (member,) = formats
        return f"{kind} apart: {member}{', streaming' if formats[member] == STREAM else ''}"
    how = f"lazy within {case['budget_mb']} MB" if case.get("lazy") else "one allocator" if case["shared"] else "an allocator each"
    return f"{kind} together{streaming}, {how}{', one thread' if 'threads' in case else ''}"


def sum_of(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Members apart, added up."""
    figures = ("members", "file_mb", "planned_mb", "resident_mb", "latency_ms", "members_latency_ms", "first_attempt_training_mb")
    added = {key: round(sum(row[key] for row in rows), 2) for key in figures if all(key in row for row in rows)}
    return {"what": f"{name} apart: their sum", **added, **{key: rows[0][key] for key in ("bars", "threads", "processes")}}


def _file_bytes(folder: Path, kind: str) -> int:
    files = ("step", "forecast") if kind == STREAM else (kind,)
    return sum((folder / f"{name}.onnx").stat().st_size for name in files)


def main() -> None:
    """Build the members, measure every case, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=RECIPES, default="reference")
    parser.add_argument("--bars", type=int, default=100)
    parser.add_argument("--processes", type=int, default=3)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> dict[str, Any]:
        rows.append({"sizes": arguments.sizes, **row})
        print(rows[-1], flush=True)
        write_result(f"ensemble_{arguments.sizes}", rows)
        return row

    def measure(case: Case) -> dict[str, Any]:
        row = row_of(case, folders, arguments.bars, arguments.processes)
        return add(beside(case, row) if arguments.sizes == "reference" else row)

    with tempfile.TemporaryDirectory() as name:
        folders = write_members(arguments.sizes, Path(name))
        for folder in folders.values():
            write_plans(folder)
        for kind, title in (("fp32", "FP32"), ("int8_ptq", "INT8")):
            add(sum_of([measure(case) for case in apart(folders, kind)], title))
        streaming: Case = {"formats": {"tft": STREAM}, "shared": False, "budget_mb": PLENTY_MB}
        for case in (streaming, *together(folders)):
            measure(case)


if __name__ == "__main__":
    main()
