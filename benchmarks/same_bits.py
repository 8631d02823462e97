"""Prove that a change moves no bit: run recipes at two commits and compare every exported file and every metric.

python benchmarks/same_bits.py BEFORE AFTER [--recipes qat_int8 structured_qat mamba2]

The recipes run in a checkout of each commit, on the CPU, with the same interpreter. Equal must be the bytes of every .onnx file and the
lines of every metrics.jsonl without the fields that are times. Prints a line a file; the exit status is 1 where any differs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECIPES = ("qat_int8", "structured_qat", "mamba2")
TIMES = ("samples_per_s", "seconds")  # of a line of metrics.jsonl


def without_times(value: Any) -> Any:
    """A JSON value without the fields that are times, at any depth."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def fingerprints(run: Path) -> dict[str, str]:
    """SHA-256 of every exported file and of every file of metrics of a run, by relative path."""
    found = {}
    for path in sorted(run.rglob("*.onnx")):
        found[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(run.rglob("metrics.jsonl")):
        lines = [without_times(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        found[str(path.relative_to(run))] = hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()
    return found


def run_recipes(commit: str, recipes: list[str], folder: Path) -> dict[str, str]:
    """Run recipes at a commit, in a checkout of its own; returns the fingerprints of what they leave.

    Files hold a hash of the recipe, paths included: both commits must be checked out at the same place.
    """
    checkout = folder / "checkout"
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", "--quiet", str(checkout), commit], check=True)
    found = {}
    try:
        for recipe in recipes:
            out = folder / commit.replace("/", "-") / recipe
            command = [sys.executable, "-m", "tftq.run", f"recipes/{recipe}.yaml", f"out={out}", "export.publish=false", "device=cpu"]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
            found |= {f"{recipe}/{name}": digest for name, digest in fingerprints(out).items()}
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(checkout)], check=True)
    return found


def main() -> int:
    """Compare two commits; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = run_recipes(chosen.before, chosen.recipes, Path(folder))
        after = run_recipes(chosen.after, chosen.recipes, Path(folder))
    for name in sorted(before.keys() | after.keys()):
        same = before.get(name) == after.get(name)
        print(f"{'same' if same else 'DIFFERS'}  {name}  {before.get(name, 'absent')[:16]}")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
