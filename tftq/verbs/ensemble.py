"""Run several models on every bar of a file or of standard input within one memory budget, and combine their forecasts."""

import argparse
import io
import json
import sys
from pathlib import Path

from tftq.console import Console, exit_status
from tftq.serve.resident import use_system_pool

EPILOG = "Example: recipes/ensemble.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("recipe", type=Path, help="a YAML file, see recipes/")
    parser.add_argument("override", nargs="*", metavar="key=value", help="an option of the recipe, as memory.budget_mb=120 or data.path=-")
    parser.add_argument("--resume", action="store_true", help="resume an earlier run in its folder, out=...")
    parser.add_argument("--json", action="store_true", help="print summary.json and nothing else; for a file of bars")


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run an ensemble; returns the exit status: 0, 1 where the run failed, 2 where the recipe is wrong, 130 on Ctrl-C, 143 on SIGTERM."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # bytes that are no text make a bad line, not a failed run

    use_system_pool()

    def command() -> int:
        from tftq.ensemble.job import run
        from tftq.kinds import ENSEMBLE
        from tftq.recipe.load import load

        recipe = load(ENSEMBLE, chosen.recipe, chosen.override)
        if chosen.json and recipe.data.streamed:
            parser.error("--json: standard output carries the answers; the summary is in summary.json of the run's folder")
        summary = run(recipe, resume=chosen.resume, console=Console(quiet=True) if chosen.json else None)
        if chosen.json:
            print(json.dumps(summary.as_dict(), indent=1, allow_nan=False))
        return 0

    return exit_status(command, advice=": continue with --resume and out= the run's folder")
