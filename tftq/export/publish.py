"""Name files: proven models get their names, and are published to the folder that ensembles load from."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftq.data.windows import Windows
from tftq.export.prove import Proof
from tftq.io import written_whole
from tftq.recipe.schema import BarsRecipe, TableRecipe
from tftq.spec.metadata import Origin

PUBLISHED = Path("exports")  # under the working directory, a folder for each recipe
_NOT_OF_ORIGIN = {"path", "cache", "validation", "test", "lookback", "horizon"}  # of no use with a file, or beside its inputs


@dataclass(frozen=True)
class Proven:
    """An ONNX model that passed the gate.

    Attributes:
        path: the file.
        proof: the result of the gate.
    """

    path: Path
    proof: Proof

    @property
    def files(self) -> tuple[Path, ...]:
        """Return its files: the model and its proof."""
        return self.path, self.path.with_suffix(".export.json")

    @property
    def file_bytes(self) -> int:
        """Return the size of its models."""
        return sum(path.stat().st_size for path in self.files if path.suffix == ".onnx")

    @property
    def found(self) -> dict[str, object]:
        """Return further figures beside its proof and its cost, as plain types."""
        return {}

    def summary(self) -> dict[str, object]:
        """Return the model's entry in summary.json."""
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


@dataclass
class Unproven:
    """Models under temporary names.

    Attributes:
        parts: the paths to write to, in the order of their names.
        proof: to be set once they are proven.
    """

    parts: tuple[Path, ...]
    proof: Proof | None = None


@contextmanager
def to_be_proven(*models: Path, proof: Path) -> Iterator[Unproven]:
    """Give models temporary names until they are proven; at the end they take their own, and their proof is written.

    If anything fails no file has its name, not even one of an earlier export: a failed model must not look as if it had passed.

    Args:
        models: the files.
        proof: the file of their proof.
    """
    for path in (*models, proof):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    with ExitStack() as naming:
        unproven = Unproven(tuple(naming.enter_context(written_whole(path)) for path in models))
        yield unproven
        assert unproven.proof is not None, "models are named once they are proven"
    unproven.proof.write(proof, models)


def origin(name: str, decisive_hash: str, data: BarsRecipe | TableRecipe, windows: Windows) -> Origin:
    """Describe where the files of a run come from, and how their columns are made from a file of data.

    Args:
        name: of the recipe.
        decisive_hash: see `tftq.recipe.load.recipe_hash`.
        data: the recipe's part.
        windows: that the model was trained on.
    """
    first = int(windows.starts[0])
    last = windows.starts + windows.inputs.lookback + windows.inputs.horizon - 1  # the last target of each window
    return Origin(
        recipe=name,
        recipe_hash=decisive_hash,
        data=data.model_dump(mode="json", exclude=_NOT_OF_ORIGIN),
        step_ns=int(windows.times[first + 1] - windows.times[first]),
        trained_until_ns=int(windows.times[last].max()),
    )


def publish(exported: Mapping[Any, Proven], folder: Path) -> None:
    """Copy models and their proofs atomically to the folder that ensembles load from, in place of those of the run before."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for model in exported.values() for path in model.files]
    for stale in {*folder.glob("*.onnx"), *folder.glob("*.export.json")} - {folder / path.name for path in files}:
        stale.unlink()
    for path in files:
        with written_whole(folder / path.name) as part:
            shutil.copyfile(path, part)
