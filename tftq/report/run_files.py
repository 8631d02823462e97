"""Read the files of a finished run, the only source of its report."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftq.recipe.yaml import read_document
from tftq.spec.stages import STAGES


@dataclass(frozen=True)
class RunFiles:
    """The files of a run that trained a forecaster or an agent.

    Attributes:
        summary: summary.json.
        stages: "train", and "prune" and "qat" if the run had them -> the epochs of the stage's metrics.jsonl.
        records: memory.jsonl.
        environment: env.json.
        recipe: recipe.yaml, and `recipe_text` its text.
        proofs: format -> exports/<format>.export.json, of the models in summary.json.
    """

    summary: dict[str, Any]
    stages: dict[str, list[dict[str, Any]]]
    records: list[dict[str, Any]]
    environment: dict[str, Any]
    recipe: dict[str, Any]
    recipe_text: str
    proofs: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "RunFiles":
        """Read the folder of a finished run; prune/, qat/ and exports/ may be missing."""
        summary = _json(folder / "summary.json")
        metrics = {name: folder / stage.folder / "metrics.jsonl" for name, stage in STAGES.items()}
        proofs = {format: folder / "exports" / f"{format}.export.json" for format in summary["models"]}
        return cls(
            summary,
            {stage: _epochs(path) for stage, path in metrics.items() if path.exists() or not STAGES[stage].fine_tunes},
            _lines(folder / "memory.jsonl"),
            _json(folder / "env.json"),
            read_document(folder / "recipe.yaml").values,
            (folder / "recipe.yaml").read_text(encoding="utf-8"),
            {format: _json(path) for format, path in proofs.items() if path.exists()},
        )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _epochs(path: Path) -> list[dict[str, Any]]:
    """Read the last line of each epoch: an epoch that was interrupted after its line is trained, and written, again."""
    return list({line["epoch"]: line for line in _lines(path)}.values())
