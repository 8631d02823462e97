"""Forecast a file of bars or of a table with an exported model."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tftq.console import Console, exit_status
from tftq.serve.find import BATCH_SIZE, CHANGEABLE
from tftq.serve.resident import use_system_pool
from tftq.spec.formats import PREFERRED

if TYPE_CHECKING:
    from tftq.serve.forecast import Forecasts

EPILOG = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("model", type=Path, help="an exported .onnx file, or the folder of a run")
    parser.add_argument("data", type=Path, help="a parquet or CSV file of bars or of a table, as the model was trained on")
    parser.add_argument("override", nargs="*", metavar="key=value", help=f"what differs from training: data.{', data.'.join(CHANGEABLE)}")
    parser.add_argument("--out", type=Path, help="write all forecasts to this parquet file")
    parser.add_argument("--last", action="store_true", help="forecast the newest window alone, reading what it needs from the file's end")
    parser.add_argument("--format", choices=PREFERRED, help=f"of a folder's models; the first there is of {', '.join(PREFERRED)}")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="windows to one run of the model")
    parser.add_argument("--threads", type=int, default=0, help="threads within an operator; 0, the default, lets ONNX Runtime choose")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def execute(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Forecast; returns the exit status: 0, 1 where model or data cannot be used, 2 where the command line is wrong."""
    if chosen.batch_size < 1:
        parser.error(f"--batch-size: found {chosen.batch_size}; allowed: 1 and above")
    if chosen.threads < 0:
        parser.error(f"--threads: found {chosen.threads}; allowed: 0 and above")
    if chosen.out is not None and (chosen.out.suffix != ".parquet" or chosen.out.resolve() == chosen.data.resolve()):
        parser.error(f"--out: found {chosen.out}; allowed: the name of another .parquet file than DATA")

    use_system_pool()

    def command() -> int:
        from tftq.serve.forecast import predict

        prediction = predict(
            chosen.model,
            chosen.data,
            newest=chosen.last,
            format=chosen.format,
            overrides=chosen.override,
            threads=chosen.threads,
        )

        from tftq.jobs.predict import Accuracy, document, show, write_forecasts  # Arrow among it: see the note in tftq.serve.forecast

        batches: Iterable[Forecasts] = prediction.batches(chosen.batch_size)
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            batches = write_forecasts(batches, chosen.out, prediction.model)
        accuracy = Accuracy(prediction.model)
        for forecasts in batches:
            accuracy.add(forecasts)
        if chosen.json:
            print(json.dumps(document(prediction, forecasts, accuracy, chosen.out), indent=1, allow_nan=False))
        else:
            show(Console(), prediction, forecasts, accuracy, chosen.out)
        return 0

    return exit_status(command)
