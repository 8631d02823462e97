"""The command line: tftq VERB, the same as python -m tftq.cli VERB."""

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Protocol, cast

from tftq.console import INTERRUPTED
from tftq.io import installed


class Verb(Protocol):
    """A module of `tftq.verbs`; imported when its verb is called, so that none waits for another's imports."""

    EPILOG: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def execute(self, chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Run the verb and return the exit status."""


VERBS = {
    "run": "train, quantize, export and check what a recipe describes",
    "validate": "check a recipe (not its data) and print it with every option resolved",
    "plan": "estimate what a recipe will need in memory, without running it",
    "predict": "forecast a file of bars or of a table with an exported model",
    "compare": "print the exported models of recipes, which are run first, and of finished runs side by side",
    "ensemble": "run several models on every bar of a file or of standard input, within one memory budget",
}


def load_verb(name: str) -> Verb:
    """Import the module of a verb."""
    return cast(Verb, import_module(f"tftq.verbs.{name}"))


class _VerbParser(argparse.ArgumentParser):
    """The parser of a verb, filled when the verb is called; options may stand between the other arguments."""

    verb: Verb | None = None

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # as argparse calls it
        if self.verb is not None:  # called again by what is called below
            return super().parse_known_args(args, namespace)
        self.verb = load_verb(self.prog.split()[-1])
        self.epilog = self.verb.EPILOG
        self.verb.add_arguments(self)
        chosen, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        chosen.parser = self
        return chosen, []


def main(arguments: Sequence[str] | None = None) -> int:
    """Call a verb; returns its exit status, 2 where the command line or the recipe is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="tftq",
        description="Train a Temporal Fusion Transformer on a small GPU, quantize it to INT8, ship it as ONNX.",
        epilog="'tftq VERB --help' describes one of them.",
    )
    parser.add_argument("--version", action="version", version=f"tftq {installed('tftq') or 'from a checkout that is not installed'}")
    verbs = parser.add_subparsers(title="verbs", dest="name", metavar="VERB", required=True, parser_class=_VerbParser)
    for name, description in VERBS.items():
        verbs.add_parser(name, help=description, description=description)
    if (word := next((word for word in arguments if not word.startswith("-")), None)) is not None and word not in VERBS:
        near = get_close_matches(word, VERBS, 1)
        parser.error(f"{word}: no such verb; allowed: {', '.join(VERBS)}{f'; did you mean {near[0]}?' if near else ''}")
    try:
        chosen = parser.parse_args(arguments)
        return chosen.parser.verb.execute(chosen, chosen.parser)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
