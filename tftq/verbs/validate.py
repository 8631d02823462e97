"""Check a recipe (not its data) and print it with every option resolved."""

import argparse
import json
from pathlib import Path

from tftq.console import exit_status

EPILOG = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("recipe", type=Path, help="a YAML file, see recipes/")
    parser.add_argument("override", nargs="*", metavar="key=value", help="an option of the recipe, as train.epochs=2")
    parser.add_argument("--json", action="store_true", help='print {"recipe": {...}, "recipe_hash": "..."} and nothing else')


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Check a recipe; returns the exit status: 0, or 2 where the recipe is wrong."""

    def command() -> int:
        from tftq.kinds import RECIPE_TYPES
        from tftq.recipe.load import load_document, recipe_hash, resolved_yaml
        from tftq.recipe.yaml import parse_value

        recipe = load_document(chosen.recipe, chosen.override, among=RECIPE_TYPES)
        resolved = resolved_yaml(recipe)
        if chosen.json:
            print(json.dumps({"recipe": parse_value(resolved), "recipe_hash": recipe_hash(recipe)}, indent=1))
        else:
            print(resolved, end="")
        return 0

    return exit_status(command)
