"""One export from the model to a file with a name: built, proven, measured, and only then renamed."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tftq.agents.recipe import AgentRecipe
from tftq.data.columns import Batch
from tftq.data.windows import Windows
from tftq.evaluate.exported import evaluate
from tftq.evaluate.metrics import Validation, validation_summary
from tftq.evaluate.windows import metrics_for
from tftq.export.gate import Proof, prove
from tftq.export.graph import build_graph
from tftq.io import written_whole
from tftq.model.forecaster import Forecaster
from tftq.plan.export import WINDOWS
from tftq.quant.weights import with_rounded_weights
from tftq.recipe.load import recipe_hash
from tftq.recipe.schema import Format, Recipe, is_half

MEASURED_THREADS = 2
PUBLISHED = Path("exports")  # under the working directory, a folder for each recipe
_OF_TRAINING = {"path", "cache", "validation", "test"}  # options of `data` that a file in use has no use for


@dataclass(frozen=True)
class Proven:
    """An ONNX model that passed the gate.

    Attributes:
        path: the file.
        proof: what the gate found.
    """

    path: Path
    proof: Proof

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that was written of it: the model, and what was proven."""
        return self.path, self.path.with_suffix(".export.json")

    @property
    def file_bytes(self) -> int:
        """The size of its models."""
        return sum(path.stat().st_size for path in self.files if path.suffix == ".onnx")

    @property
    def found(self) -> dict[str, object]:
        """What is known of it beside its proof and its cost, as plain types."""
        return {}

    def summary(self) -> dict[str, object]:
        """The model's entry in summary.json."""
        cost = self.proof.cost
        return {
            "path": str(self.path),
            "file_bytes": self.file_bytes,
            **self.found,
            "max_abs_diff": self.proof.max_abs_diff,
            "rss_bytes": int(cost["rss_bytes"]),
            "latency_ms": cost["latency_ms"],
            "load_ms": cost["load_ms"],
            "int8_weight_share": self.proof.census.int8_weight_share,
            "int4_weight_share": self.proof.census.int4_weight_share,
            "kept_float": list(self.proof.census.kept_float),
            "nodes": self.proof.nodes,
            **({} if self.proof.gpu is None else {"gpu": self.proof.gpu}),
        }


@dataclass(frozen=True)
class Exported(Proven):
    """A forecaster that passed the gate.

    Attributes:
        path, proof: see `Proven`.
        quality: of its forecasts of the validation windows.
        test: of its forecasts of the test windows, where the recipe keeps some.
    """

    quality: Validation
    test: Validation | None

    @property
    def found(self) -> dict[str, object]:
        """How good its forecasts are."""
        return {**validation_summary(self.quality), **({} if self.test is None else {"test": validation_summary(self.test)})}


@contextmanager
def to_be_proven(*models: Path, proof: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary names to write models to and to prove them, which take their places at the end; none has its name if anything failed.

    Neither has one of an export before, as of a run that is resumed: what fails now must not look as if it had passed.

    Args:
        models: the files.
        proof: what was proven of the ones before.
    """
    for path in (*models, proof):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    with ExitStack() as naming:
        yield tuple(naming.enter_context(written_whole(path)) for path in models)


def export_model(
    model: Forecaster,
    kind: Format,
    folder: Path,
    validation: Windows,
    test: Windows | None,
    *,
    batch_size: int,
    metadata: Mapping[str, object],
    gpu: str | None = None,
) -> Exported:
    """Write `<folder>/<kind>.onnx` and what was proven of it, or nothing.

    Args:
        model: a TFT in the table form; prepared and calibrated for the formats with integer weights.
        kind: the format.
        folder: where to; made where missing.
        validation: the windows to prove and to measure it with.
        test: further windows to measure it with, where there are any.
        batch_size: windows a run.
        metadata: what to note in the file.
        gpu: the UUID of the GPU at hand, to measure there too what is for one.

    Raises:
        GateError: the model is not what it should be; no file with its name is left.
    """
    path, proven = folder / f"{kind}.onnx", folder / f"{kind}.export.json"
    with to_be_proven(path, proof=proven) as (part,):
        part.write_bytes(build_graph(model, {**metadata, "format": kind, "target": validation.target_unit}, half=is_half(kind)))
        computes = with_rounded_weights(model) if kind == "fp16_int8" else model
        proof = prove(part, computes, _some(validation), kind, threads=MEASURED_THREADS, kept=model.kept_float, gpu=gpu)
        quality = evaluate(part, validation, metrics_for(model), batch_size=batch_size)
        tested = None if test is None else evaluate(part, test, metrics_for(model), batch_size=batch_size)
    proof.write(proven, [path])
    return Exported(path, proof, quality, tested)


def origin(recipe: Recipe | AgentRecipe, windows: Windows) -> dict[str, object]:
    """What a file says of where it comes from and how its columns are made of a file of data, beside its inputs.

    Args:
        recipe: of the run that made it.
        windows: that it was trained on.
    """
    first = int(windows.starts[0])
    last = windows.starts + windows.inputs.lookback + windows.inputs.horizon - 1  # the last target of each window
    return {
        "recipe": recipe.name,
        "recipe_hash": recipe_hash(recipe),
        "data": recipe.data.model_dump(mode="json", exclude=_OF_TRAINING),
        "step_ns": int(windows.times[first + 1] - windows.times[first]),
        "trained_until_ns": int(windows.times[last].max()),
    }


def publish(exported: Mapping[Any, Proven], folder: Path) -> None:
    """Copy models and their proofs to the folder that ensembles load from, each whole, in place of those of the run before."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for model in exported.values() for path in model.files]
    for stale in {*folder.glob("*.onnx"), *folder.glob("*.export.json")} - {folder / path.name for path in files}:
        stale.unlink()
    for path in files:
        with written_whole(folder / path.name) as part:
            shutil.copyfile(path, part)


def _some(windows: Windows, count: int = WINDOWS) -> Batch:
    """Windows spread over a part's whole time."""
    return windows.batch(torch.linspace(0, len(windows) - 1, min(count, len(windows))).round().long())
