"""Print the exported models of recipes, which are run first, and of finished runs side by side."""

import argparse
import json
import sys
from pathlib import Path

from tftq.console import Console, exit_status
from tftq.errors import CompareError, RecipeError

EPILOG = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "given", nargs="+", metavar="RECIPE|FOLDER|key=value", help="recipes, folders of finished runs; options for recipes"
    )
    parser.add_argument(
        "--json", action="store_true", help='print {"comparable": ..., "models": [...]} and nothing else on standard output'
    )


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Compare runs; returns the exit status: 0, 1 where a run failed, 2 where it cannot compare, 130 on Ctrl-C, 143 on SIGTERM."""
    overrides = [word for word in chosen.given if "=" in word and not Path(word).exists()]
    paths = [Path(word) for word in chosen.given if word not in overrides]
    if not paths:
        parser.error("give at least one recipe or folder of a finished run")

    def command() -> int:
        import tftq.kinds  # noqa: F401  # registers every type of recipe
        from tftq.jobs.compare import compare

        comparison = compare(paths, overrides, Console(sys.stderr) if chosen.json else Console())
        if chosen.json:
            print(json.dumps(comparison.as_dict(), indent=1, allow_nan=False))
        else:
            comparison.show(Console())
        return 0

    return exit_status(command, refused=(RecipeError, CompareError), advice="; what was finished can be given as folders")
