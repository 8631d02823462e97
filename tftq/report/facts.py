"""What the files of a finished run say, read back: the report knows nothing that is not in its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftq.recipe.yaml import read_document


@dataclass(frozen=True)
class Facts:
    """A run's files.

    Attributes:
        summary: summary.json.
        stages: "train", and "prune" and "qat" where there were such -> its epochs' lines of metrics.jsonl.
        records: memory.jsonl.
        environment: env.json.
        recipe: recipe.yaml, and `recipe_text` as it stands there.
        proofs: kind of model -> exports/<kind>.export.json, of the models that summary.json names.
    """

    summary: dict[str, Any]
    stages: dict[str, list[dict[str, Any]]]
    records: list[dict[str, Any]]
    environment: dict[str, Any]
    recipe: dict[str, Any]
    recipe_text: str
    proofs: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "Facts":
        """Read a run folder; prune/, qat/ and exports/ may be missing, everything else is there after a run."""
        summary = _json(folder / "summary.json")
        metrics = {"train": folder / "metrics.jsonl", **{stage: folder / stage / "metrics.jsonl" for stage in ("prune", "qat")}}
        proofs = {kind: folder / "exports" / f"{kind}.export.json" for kind in summary["models"]}
        return cls(
            summary,
            {stage: _epochs(path) for stage, path in metrics.items() if stage == "train" or path.exists()},
            _lines(folder / "memory.jsonl"),
            _json(folder / "env.json"),
            read_document(folder / "recipe.yaml").values,
            (folder / "recipe.yaml").read_text(encoding="utf-8"),
            {kind: _json(path) for kind, path in proofs.items() if path.exists()},
        )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _epochs(path: Path) -> list[dict[str, Any]]:
    """The last line of each epoch: one that was interrupted right after its line is trained, and written, again."""
    return list({line["epoch"]: line for line in _lines(path)}.values())
