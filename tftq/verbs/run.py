"""Train, quantize, export and check what a recipe describes."""

import argparse
from pathlib import Path

from tftq.console import exit_status

EPILOG = "Example: recipes/qat_int8.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("recipe", type=Path, help="a YAML file, see recipes/")
    parser.add_argument("override", nargs="*", metavar="key=value", help="an option of the recipe, as train.epochs=2 or out=/tmp/run")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run in its folder, out=...")


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run a recipe; returns the exit status: 0, 1 where the run failed, 2 where the recipe is wrong, 130 on Ctrl-C, 143 on SIGTERM."""

    def command() -> int:
        from tftq.kinds import run

        run(chosen.recipe, chosen.override, resume=chosen.resume)
        return 0

    return exit_status(command, advice=": continue with --resume and out= the run's folder, or run anew")
