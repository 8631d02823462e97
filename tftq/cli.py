"""The command line: tftq VERB, the same as python -m tftq.cli VERB."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tftq.io import installed

# What a verb needs is imported when it is called, so that help does not wait for torch.


def run(arguments: Sequence[str]) -> int:
    """train, quantize, export and check what a recipe says"""
    from tftq.jobs.run import main

    return main(arguments, program="tftq run")


def validate(arguments: Sequence[str]) -> int:
    """check a recipe (not its data) and print it with every option resolved"""
    from tftq.console import exit_status
    from tftq.recipe.load import load_document, recipe_hash, resolved_yaml
    from tftq.recipe.yaml import parse_value

    parser = argparse.ArgumentParser(prog="tftq validate", description=validate.__doc__)
    parser.add_argument("recipe", type=Path, help="a YAML file, see recipes/")
    parser.add_argument("override", nargs="*", metavar="key=value", help="an option of the recipe, as train.epochs=2")
    parser.add_argument("--json", action="store_true", help='print {"recipe": {...}, "recipe_hash": "..."} and nothing else')
    chosen = parser.parse_intermixed_args(arguments)

    def command() -> int:
        recipe = load_document(chosen.recipe, chosen.override)
        resolved = resolved_yaml(recipe)
        if chosen.json:
            print(json.dumps({"recipe": parse_value(resolved), "recipe_hash": recipe_hash(recipe)}, indent=1))
        else:
            print(resolved, end="")
        return 0

    return exit_status(command)


def plan(arguments: Sequence[str]) -> int:
    """what a recipe will need in memory, without running it"""
    from tftq.jobs.plan import main

    return main(arguments, program="tftq plan")


def predict(arguments: Sequence[str]) -> int:
    """forecast a file of bars or of a table with an exported model"""
    from tftq.jobs.predict import main

    return main(arguments, program="tftq predict")


def compare(arguments: Sequence[str]) -> int:
    """print the exported models of recipes, which are run, and of finished runs side by side"""
    from tftq.jobs.compare import main

    return main(arguments, program="tftq compare")


def ensemble(arguments: Sequence[str]) -> int:
    """ask several models at every bar of a file or of standard input, within one memory budget"""
    from tftq.ensemble.job import main

    return main(arguments, program="tftq ensemble")


VERBS = {"run": run, "validate": validate, "plan": plan, "predict": predict, "compare": compare, "ensemble": ensemble}


def main(arguments: Sequence[str] | None = None) -> int:
    """Call a verb; returns its exit status, 2 where the command line or the recipe is wrong."""
    verbs = "\n".join(f"  {name:10}{verb.__doc__}" for name, verb in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="tftq",
        description="Train a Temporal Fusion Transformer on a small GPU, quantize it to INT8, ship it as ONNX.",
        epilog=f"verbs:\n{verbs}\n\n'tftq VERB --help' tells more of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tftq {installed('tftq') or 'from a checkout that is not installed'}")
    parser.add_argument("verb", choices=VERBS, help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the verb takes")
    chosen = parser.parse_args(arguments)
    try:
        return VERBS[chosen.verb](chosen.arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as shells have it


if __name__ == "__main__":
    sys.exit(main())
