"""Compare the exported models of several runs; run recipes first, read the folders of finished runs."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tftq.console import Console
from tftq.errors import CompareError, RecipeError, TftqError
from tftq.jobs.folder import begun_by, identity, new_folder
from tftq.jobs.run import run
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe
from tftq.spec.formats import FP32
from tftq.spec.units import MB


@dataclass(frozen=True)
class FinishedRun:
    """The files of a finished run.

    Args:
        folder: its path.
        summary: its summary.json.
        environment: its env.json.
    """

    folder: Path
    summary: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Read a run's folder.

        Raises:
            CompareError: it is not the folder of a finished run, or the run failed, or exported nothing.
        """
        summary = _json(folder / "summary.json", _hint(folder))
        status = summary.get("status", "nothing")
        if status != "ok":
            raise CompareError(f"{folder}: of the run it says: {status}; {_hint(folder)}")
        if "trained_parameters" in summary:
            raise CompareError(f"{folder}: the run of an agent, which forecasts nothing; see its report.html, or tftq ensemble")
        if not summary.get("models"):
            raise CompareError(f"{folder}: the run exported no model; give one that did")
        found = cls(folder, summary, _json(folder / "env.json", "a run leaves one: was it removed?"))
        try:
            Comparison((found,)).as_dict(), found.summary["val"]["q_risk"]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CompareError(f"{folder}: its files lack what a run of this version writes ({error!r}); run its recipe again") from error
        return found

    @property
    def name(self) -> str:
        """Return the recipe's name."""
        return str(self.summary["name"])

    def differences(self, first: "FinishedRun") -> list[str]:
        """List why its losses do not compare with those of another run."""
        if self is first:
            return []
        ours, theirs = (found.summary.get("validation_windows") for found in (self, first))
        if ours is None or theirs is None:
            older = self.folder if ours is None else first.folder
            return [f"{older} does not say which windows it was measured on: it is of an older version; run its recipe again"]
        if ours["targets"] != theirs["targets"]:
            counts = "" if ours["count"] == theirs["count"] else f" ({ours['count']} and {theirs['count']})"
            return [
                f"other validation windows{counts}: data.path, data.lookback, data.horizon or the split differ, or the file was changed"
            ]
        found = []
        if not all(map(_nearly, ours["loss_scale"], theirs["loss_scale"])):
            found.append("the loss is in another scale: that of the training part's target, which differs")
        if self.summary["val"]["q_risk"].keys() != first.summary["val"]["q_risk"].keys():
            found.append("other quantiles: model.quantiles differs")
        return found

    @property
    def machine(self) -> str:
        """Return the machine and the runtime, on which latency and memory depend."""
        runtimes = (f"{name} {version}" for name, version in self.environment["packages"].items() if name.startswith("onnxruntime"))
        return ", ".join([self.environment["platform"], f"{self.environment['cpu_count']} CPUs", *runtimes])


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, the first one the measure of the others.

    Args:
        runs: at least one.
    """

    runs: tuple[FinishedRun, ...]

    @property
    def baseline(self) -> str:
        """Return the model of the first run that the others are compared with: in FP32, or else the first that it exported."""
        models = self.runs[0].summary["models"]
        return FP32 if FP32 in models else next(iter(models))

    def labels(self) -> list[str]:
        """Return each run's name, with its folder where another run has the same name."""
        often = Counter(made.name for made in self.runs)
        return [made.name if often[made.name] == 1 else f"{made.name} ({made.folder})" for made in self.runs]

    def differences(self) -> list[str]:
        """List why figures do not compare, a line for each run and reason."""
        first = self.runs[0]
        return [f"{label}: {reason}" for made, label in zip(self.runs, self.labels(), strict=True) for reason in made.differences(first)]

    def elsewhere(self) -> list[str]:
        """List the runs whose latency and memory were measured on another machine than the first one's, or by another runtime."""
        first = self.runs[0].machine
        others = [(label, made.machine) for made, label in zip(self.runs, self.labels(), strict=True) if made.machine != first]
        return [f"{label}: latency and memory were measured on {machine}, those of the first run on {first}" for label, machine in others]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each exported model, in plain types; the ratio is None where the losses do not compare."""
        first = self.runs[0]
        loss = first.summary["models"][self.baseline]["loss"]
        rows = []
        for made, label in zip(self.runs, self.labels(), strict=True):
            comparable = not made.differences(first)
            for kind, model in made.summary["models"].items():
                figures = {name: model[name] for name in ("loss", "q_risk", "coverage", "file_bytes", "rss_bytes", "latency_ms")}
                rows.append(
                    {
                        "run": label,
                        "folder": str(made.folder),
                        "model": kind,
                        **figures,
                        "loss_ratio": model["loss"] / loss if comparable and loss else None,
                        "int8_weight_share": model["int8_weight_share"],
                        "int4_weight_share": model.get("int4_weight_share", 0.0),  # and stored nothing in four bits
                        "kept_float": model.get("kept_float", []),  # runs of older versions kept nothing
                    }
                )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        differences = self.differences()
        return {
            "comparable": not differences,
            "differences": differences,
            "measured_elsewhere": self.elsewhere(),
            "baseline": {"run": self.labels()[0], "model": self.baseline},
            "models": self.rows(),
        }

    def show(self, console: Console) -> None:
        """Print the table, and below it the layers kept in floating point and the figures that do not compare."""
        table = Table(title="Exported models, on the validation windows of their runs", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("run", overflow="fold")
        table.add_column("model", no_wrap=True)
        names = (
            "quantile loss",
            f"of {self.baseline}",
            "P50 q-risk",
            "coverage",
            "file MB",
            "resident MB",
            "latency ms",
            "INT8/4",
            "kept",
        )
        for name in names:
            table.add_column(name, justify="right")
        rows = self.rows()
        for row in rows:
            table.add_row(row["run"], row["model"], *_figures(row))
        console.print_table(table)
        for row in rows:
            if row["kept_float"]:
                console.print_line(f"{row['run']} {row['model']}: in floating point stay {', '.join(row['kept_float'])}")
        for line in self.differences():
            console.print_line(f"not comparable: {line}")
        for line in self.elsewhere():
            console.print_line(f"note: {line}")


def compare(given: Sequence[Path], overrides: Sequence[str], console: Console) -> Comparison:
    """Run the recipes, read the folders, and put them side by side in the order given.

    Args:
        given: recipes, which are run, and folders of finished runs.
        overrides: `key=value` for every recipe.
        console: where the runs print.

    Raises:
        RecipeError: a recipe is wrong; nothing has been run then.
        CompareError: a folder is not one of a finished run, there is no recipe to override, or two write to one folder; nothing has
            been run then.
        TftqError: a run failed.
    """
    if overrides and all(path.is_dir() for path in given):
        raise CompareError(f"{', '.join(overrides)} has no effect: only folders of finished runs are given; allowed: beside a recipe")
    if models := [str(path) for path in given if path.suffix == ".onnx" and path.is_file()]:
        raise CompareError(f"{', '.join(models)}: found a model; allowed: a recipe, or the folder of a finished run")
    # All are looked at before any is run.
    found = [FinishedRun.read(path) if path.is_dir() else _finished_before(load_recipe(path, overrides), console) for path in given]
    folders = Counter(made.out for made in found if isinstance(made, Recipe) and made.out is not None)
    if twice := [str(folder) for folder, count in folders.items() if count > 1]:
        raise CompareError(f"out: several recipes would both write to {', '.join(twice)}; give each a folder of its own, or leave it out")
    return Comparison(tuple(made if isinstance(made, FinishedRun) else _run(made, console) for made in found))


def _finished_before(recipe: Recipe, console: Console) -> FinishedRun | Recipe:
    """Return the finished run in a recipe's own `out`, or the recipe where it is still to be run.

    Raises:
        CompareError: `out` holds something else, so that it could not be run.
    """
    folder = recipe.out
    if folder is None or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return recipe
    if not (folder / "recipe.yaml").exists() or identity(begun_by(folder)) != identity(recipe):
        raise CompareError(f"{folder}: holds something else than a run of {recipe.name} as given; choose another out=..., or leave it out")
    finished = FinishedRun.read(folder)
    console.print_line(f"{recipe.name}: finished before, in {folder}")
    return finished


def _run(recipe: Recipe, console: Console) -> FinishedRun:
    folder = recipe.out or new_folder(recipe, datetime.now(UTC))
    try:
        run(recipe.model_copy(update={"out": folder}), console=console)
    except RecipeError as error:  # that only shows with its data
        raise TftqError(str(error)) from error
    return FinishedRun.read(folder)


def _nearly(ours: float, theirs: float) -> bool:
    """Compare two numbers, equal up to FP32's rounding, which differs from machine to machine."""
    return math.isclose(ours, theirs, rel_tol=1e-6)


def _json(path: Path, hint: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"{path}: cannot be read: {error.strerror}; {hint}") from error
    except ValueError as error:
        raise CompareError(f"{path}: is no JSON ({error}); run its recipe again") from error
    if not isinstance(content, dict):
        raise CompareError(f"{path}: found a {type(content).__name__}; allowed: what a run writes there")
    return content


def _hint(folder: Path) -> str:
    """Advise what to do about a folder without summary.json."""
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    if runs:
        return f"did you mean a run below it, as {runs[-1]}?"
    if (folder / "recipe.yaml").exists():
        return f"the run did not finish: continue with {folder / 'recipe.yaml'} out={folder} --resume"
    return "allowed: a recipe, or the folder of a finished run"


def _figures(row: dict[str, Any]) -> list[str]:
    """Format the cells of a row after the names."""
    ratio = row["loss_ratio"]
    return [
        f"{row['loss']:.5f}",
        "–" if ratio is None else f"{ratio:.4f}",
        f"{row['q_risk']['0.5']:.4f}",
        f"{row['coverage']:.1%}",
        f"{row['file_bytes'] / MB:.2f}",
        f"{row['rss_bytes'] / MB:.0f}",
        f"{row['latency_ms']:.2f}",
        f"{row['int8_weight_share'] + row['int4_weight_share']:.0%}",
        str(len(row["kept_float"])),
    ]
