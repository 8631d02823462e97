"""Check and measure on a GPU what no CPU can show, in under seven minutes: `make gpu-check`, or `python benchmarks/gpu/check.py`.

The cases: training the reference model in each precision at batch 32 and 1 under a cap of 4 GiB; QAT of its tables; a batch that does
not fit and is halved until it does; the properties that hold on every device; each format for a GPU in ONNX Runtime, with the memory of its
session and the provider of each node; and the members of an ensemble together. Prints tables and writes benchmarks/results/gpu_check.json,
and gpu_check.json in the folder that the environment variable OUT names. Exit status 1 if there is no CUDA device, a measurement failed or
a check did not pass; a missed target of speed is only reported.

tftq runs from the checkout and need not be installed. Packages that the machine lacks can be carried as wheels, as

    pip install --no-index --find-links wheels pydantic
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import write_result
from benchmarks.gpu.agreement import AGREEMENTS
from benchmarks.gpu.ensemble import ensemble_rows
from benchmarks.gpu.reference import REFERENCE, ROOT
from benchmarks.gpu.runtime import runtime_row
from benchmarks.gpu.shortage import shortage_row
from benchmarks.gpu.training import training_row
from tftq.quant.prepare import LstmStorage
from tftq.spec.formats import Format

CAP_BYTES = 4 * 2**30  # of the card that this library is for
SHORT_BYTES, LARGE_BATCH = 2**30, 1024  # a smaller cap, and windows that do not fit below it at once
LIMIT_S = 420.0  # for everything
TRAINING, RUNTIME = f"training under a cap of {CAP_BYTES >> 30} GiB", "ONNX Runtime on the GPU"
ENSEMBLE = "the ensemble on the GPU"
SHORTAGE = f"training under a cap of {SHORT_BYTES >> 30} GiB, which is too little"

Row = dict[str, Any]
Case = Callable[[torch.device], list[Row]]


def cases() -> dict[str, Case]:
    """Every configuration by name, in the order in which they run; each has a process of its own."""
    found: dict[str, Case] = {}
    stages = [("train", "fp32"), ("train", "fp16"), ("train", "bf16"), ("qat", "fp32")]
    for stage, precision in stages:
        for batch in (32, 1):
            found[f"{stage}_{precision}_batch{batch}"] = _training(stage, precision, batch)
    found["out_of_memory"] = lambda device: [shortage_row(REFERENCE, LARGE_BATCH, device, SHORT_BYTES)]
    found["agreement"] = agreement_rows
    kinds: tuple[tuple[Format, LstmStorage], ...] = (
        *(("fp32", "fp32"), ("fp16", "fp32")),
        *(("fp16_int8", "fp32"), ("fp16_int8", "int8"), ("int8_ptq", "int8")),
    )
    for kind, lstm in kinds:
        found[f"onnx_{kind}_lstm_int8" if (kind, lstm) == ("fp16_int8", "int8") else f"onnx_{kind}"] = _runtime(kind, lstm)
    found["ensemble"] = lambda device: ensemble_rows("reference", device)
    return found


def agreement_rows(device: torch.device) -> list[Row]:
    """A row for each property that must hold on every device; one that cannot be measured does not hide the others."""
    rows = []
    for agreement in AGREEMENTS:
        try:
            rows.append(agreement.row(device))
        except Exception as error:
            rows.append({"check": agreement.name, "error": describe(error)})
    return rows


def run_case(name: str, case: Case, device: torch.device) -> list[Row]:
    """The rows of a case; where it raises, as when memory runs out, one that says so."""
    try:
        rows = case(device)
    except Exception as error:
        rows = [{"error": describe(error)}]
    return [{"case": name, **row} for row in rows]


def rows_of_process(name: str, timeout_s: float) -> list[Row]:
    """The rows of a case that ran in a fresh process, so that its peaks are its own; one with an error where the process died."""
    command = [sys.executable, __file__, "--case", name, "--json"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=max(timeout_s, 0.1))
    except subprocess.TimeoutExpired:
        return [{"case": name, "error": f"not done within the {LIMIT_S:.0f} s that all cases have together"}]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [{"case": name, "error": f"its process ended with exit status {done.returncode}: {last}"}]
    sys.stderr.write(done.stderr)
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def describe(error: Exception) -> str:
    """An error in one line, without the paths of this machine; the whole of it goes to standard error."""
    traceback.print_exception(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.replace(str(ROOT), ".").replace(str(Path.home()), "~")


def failed(row: Row) -> bool:
    """Whether a row is an error, or of a check that did not pass."""
    return "error" in row or row.get("passed") is False


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each kind of case, a line for each row."""
    kinds: dict[str, list[Row]] = {TRAINING: [], SHORTAGE: [], "agreement": [], RUNTIME: [], ENSEMBLE: []}
    for row in rows:
        kind = {"agreement": "agreement", "onnx": RUNTIME, "out": SHORTAGE, "ensemble": ENSEMBLE}.get(row["case"].split("_")[0], TRAINING)
        kinds[kind].append(row)
    return [_table(title, part) for title, part in kinds.items() if part]


def _table(title: str, rows: Sequence[Row]) -> Table:
    """The figures that any of the rows has; errors and reasons for skipping last."""
    known = {"stage", "precision", "batch", "format", "lstm", "first_attempt_ms", "cap_bytes", "nodes"}
    hidden = known | ({"case"} if title == "agreement" else set())
    found = dict.fromkeys(name for row in rows for name in row if name not in hidden)
    last = [name for name in ("skipped", "error") if name in found]
    names = [*(name for name in found if name not in last), *last]
    table = Table(title=title)
    for name in names:
        words = name in ("case", "check", "computed_by", *last)
        table.add_column(_heading(name), overflow="fold", justify="left" if words else "right", no_wrap=name == "case")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in names), style="red" if failed(row) else None)
    return table


def _heading(name: str) -> str:
    return (name.replace("_bytes", "_MiB") if _in_mebibytes(name) else name).replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if _in_mebibytes(name):
        return f"{value / 2**20:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _in_mebibytes(name: str) -> bool:
    """Bytes are shown in MiB, except those that should be zero."""
    return name.endswith("_bytes") and not name.startswith("left_by_")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python benchmarks/gpu/check.py", description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=list(cases()), help="run this one alone, in this process")
    parser.add_argument("--json", action="store_true", help="print the rows of --case as one line of JSON")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu-check needs a CUDA device, and none answers: run it on a machine with one, and a CUDA build of torch", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    if chosen.case:
        cap(device)
        rows = run_case(chosen.case, cases()[chosen.case], device)
        if chosen.json:
            print(json.dumps(rows, allow_nan=False))
            return 0
    else:
        rows = run_all(Console(stderr=True))
    console = Console()
    console.width = max(console.width, 160)
    for table in tables(rows):
        console.print(table)
    console.print(speed_line(rows))
    return 1 if any(map(failed, rows)) else 0


def run_all(progress: Console) -> list[Row]:
    """Run every case, and write down what they found."""
    rows: list[Row] = []
    end = time.monotonic() + LIMIT_S
    for name in cases():
        start = time.monotonic()
        rows += rows_of_process(name, end - start)
        progress.print(f"{name}: {time.monotonic() - start:.0f} s", highlight=False)
    result = write_result("gpu_check", rows)
    if "OUT" in os.environ:
        shutil.copy(result, os.environ["OUT"])
    return rows


def cap(device: torch.device) -> None:
    """Let this process allocate as much as the small card has; the context of CUDA comes on top."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(CAP_BYTES / total, 1.0), device)


def speed_line(rows: Sequence[Row]) -> str:
    """The time of an update from one window beside the target and the first attempt."""
    timed = [row for row in rows if "target_ms" in row]
    if not timed:
        return "an update from one window: not measured"
    best = min(timed, key=lambda row: row["step_ms"])
    verdict = "reached" if best["step_ms"] < best["target_ms"] else "missed"
    return (
        f"an update from one window: {best['step_ms']:.1f} ms ({best['case']}); "
        f"target under {best['target_ms']:g} ms: {verdict}; the first attempt took {best['first_attempt_ms']:g} ms"
    )


def _training(stage: str, precision: str, batch: int) -> Case:
    return lambda device: [{**training_row(REFERENCE, stage, precision, batch, device), "cap_bytes": CAP_BYTES}]


def _runtime(kind: Format, lstm: LstmStorage) -> Case:
    return lambda device: [runtime_row(REFERENCE, kind, lstm, device)]


if __name__ == "__main__":
    sys.exit(main())
