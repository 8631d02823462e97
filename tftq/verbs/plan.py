"""Estimate what a recipe will need in memory, without running it, and what would make it need less."""

import argparse
import json
import sys
from pathlib import Path

from tftq.console import Console, exit_status
from tftq.errors import TftqError

EPILOG = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("recipe", type=Path, help="a YAML file, see recipes/")
    parser.add_argument("override", nargs="*", metavar="key=value", help="an option of the recipe, as memory.budget_mb=1000 or device=cuda")
    parser.add_argument("--json", action="store_true", help='print {"fits": ..., "budget_bytes": ..., "phases": [...]} and nothing else')


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Plan a recipe; returns the exit status: 0 where everything fits, 1 where it does not, 2 where it cannot be planned."""

    def command() -> int:
        from tftq.kinds import plan

        document = plan(chosen.recipe, chosen.override, Console(quiet=chosen.json), Console(sys.stderr, quiet=chosen.json))
        if chosen.json:
            print(json.dumps(document, indent=1))
        return 0 if document["fits"] else 1

    return exit_status(command, refused=(TftqError, OSError))
