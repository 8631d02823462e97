"""What serving costs as a user sees it: whole fresh processes, from the command to its end, imports included.

    python benchmarks/serving.py                  # the reference sizes, see benchmarks/members.py
    python benchmarks/serving.py --processes 7    # fresh processes per command
    python benchmarks/serving.py --members DIR    # write the members there once, and use them again in the next call

Each figure is the median of several processes, the commands in turn: `process_mb` is the largest resident memory of the process (1 MB is
10^6 bytes), `cpu_seconds` its CPU time, `first_forecast_s` the wall time from the command to its first output, null where the first
output is no forecast. Untrained weights: cost does not depend on them. Writes benchmarks/results/serving.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import write_result
from ensemble import BARS, STREAM, write_plans
from members import ROOT, write_members

MB = 1_000_000
ANSWERED = 100  # bars
STREAM_PROGRAM = """
import sys
import numpy as np
from tftq.serve.stream import Stream
stream = Stream(sys.argv[1])
stream.push(np.zeros((stream.lookback, len(stream.columns["history"]))))
print(stream.forecast(np.zeros((stream.horizon, len(stream.columns["future"])))).tolist())
"""


class Case(NamedTuple):
    """A command to measure.

    Attributes:
        command: as a user would type it.
        arguments: of Python.
        forecasts: whether its first output is a forecast.
        limits: figure -> what it must not exceed.
    """

    command: str
    arguments: tuple[str, ...]
    forecasts: bool
    limits: dict[str, float]


def cases(members: Path, scratch: Path) -> list[Case]:
    """The commands, given the folder of the members' files and one to write to."""
    formats = dict.fromkeys(("tft", "mamba2", "ppo", "dqn"), "int8_ptq") | {"tft": STREAM}
    recipe = {
        "name": "measured",
        "members": {name: {"path": str(members / name), "format": format} for name, format in formats.items()},
        "data": {"path": str(BARS), "last": ANSWERED},
    }
    path = scratch / "recipe.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")  # JSON is YAML
    model, command = str(members / "tft" / "int8_ptq.onnx"), ("-m", "tftq.cli")
    return [
        Case(f"tftq ensemble, four members, {ANSWERED} bars", (*command, "ensemble", str(path), "--json"), False, {"process_mb": 180}),
        Case("tftq predict", (*command, "predict", model, str(BARS), "--json"), True, {"process_mb": 150}),
        Case("tftq predict --last", (*command, "predict", model, str(BARS), "--last", "--json"), True, {"first_forecast_s": 1.2}),
        Case("Stream", ("-c", STREAM_PROGRAM, str(members / "tft")), True, {"process_mb": 95}),
        Case("tftq predict --help", (*command, "predict", "--help"), False, {"cpu_seconds": 0.5}),
    ]


def measure(case: Case, scratch: Path, number: int) -> dict[str, float]:
    """Run a command once in a fresh process; see `process.cost`."""
    arguments = list(case.arguments)
    if "ensemble" in arguments:
        arguments.append(f"out={scratch}/run{number}")
    launcher = [sys.executable, str(Path(__file__).with_name("process.py")), sys.executable, *arguments]
    done = subprocess.run(launcher, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.command}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row_of(case: Case, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The median figures of a command beside the limits."""
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    row: dict[str, Any] = {
        "command": case.command,
        "process_mb": round(figures["peak_bytes"] / MB, 1),
        "cpu_seconds": round(figures["cpu_seconds"], 2),
        "first_forecast_s": round(figures["first_output_s"], 2) if case.forecasts else None,
        "total_s": round(figures["total_s"], 2),
        "processes": len(runs),
    }
    limits = {f"target_{name}": limit for name, limit in case.limits.items()}
    return {**row, **limits, "reached": all(row[name] <= limit for name, limit in case.limits.items())}


def main() -> None:
    """Write the members, measure every command, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--sizes", choices=("reference", "small"), default="reference")
    parser.add_argument("--members", type=Path, help="a folder for the members' files; those that are there are used")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        members = arguments.members or scratch / "members"
        if not members.is_dir():
            for folder in write_members(arguments.sizes, members).values():
                write_plans(folder)
        measured = cases(members, scratch)
        runs = [[measure(case, scratch, number) for case in measured] for number in range(arguments.processes)]
    rows = [row_of(case, own) for case, own in zip(measured, zip(*runs, strict=True), strict=True)]
    for row in rows:
        print(row)
    write_result("serving" if arguments.sizes == "reference" else f"serving_{arguments.sizes}", rows)


if __name__ == "__main__":
    main()
