"""The folder of a run: what it was, on what, and what it came to."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pynvml
import torch
from filelock import FileLock, Timeout

from tftq.ensemble.recipe import EnsembleRecipe
from tftq.errors import RecipeError, RunFolderError
from tftq.io import installed, written_whole
from tftq.recipe.load import deciding_yaml, load_document, resolved_yaml
from tftq.recipe.schema import RunRecipe

LOCK = ".lock"  # of the process that is at a run
RL = ("stable-baselines3", "gymnasium")  # of the extra rl
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy", "pyarrow", "pydantic", *RL)


class RunFolder:
    """Where a run writes.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, recipe: RunRecipe | EnsembleRecipe, device: torch.device, *, resume: bool) -> "RunFolder":
        """Begin a run in a new or empty folder, or in one of the same recipe go on, with `Kind.beside` as they are now.

        Raises:
            RunFolderError: the folder is not empty, or, to resume, is not one of this recipe: some option has another value.
            RecipeError: the folder's own recipe is none for this version.
        """
        started = datetime.now(UTC)
        if resume and recipe.out is None:
            raise RunFolderError("--resume needs to know which run: name its folder with out=...")
        path = recipe.out or new_folder(recipe, started)
        folder = cls(path)
        written = path / "recipe.yaml"
        if resume:
            if not written.exists():
                raise RunFolderError(f"{path}: no recipe.yaml of a run to resume there; run without --resume, or name the run's folder")
            began = begun_by(path)
            then, now = deciding_yaml(began).splitlines(), deciding_yaml(recipe).splitlines()
            if changed := list(unified_diff(then, now, "recipe then", "recipe now", lineterm="", n=0)):
                advice = f"resume with its own, {written} out={path} --resume, or choose another folder"
                raise RunFolderError("\n".join([f"{path}: was begun by another recipe; {advice}", *changed]))
            if identity(began) != identity(recipe):
                folder.write("recipe.yaml", identity(recipe))
            return folder
        if path.is_file():
            raise RunFolderError(f"{path}: is a file; choose another out=... for the folder of the run")
        if path.exists() and any(path.iterdir()):
            raise RunFolderError(f"{path}: is not empty; choose another out=..., remove it, or go on with --resume")
        path.mkdir(parents=True, exist_ok=True)
        folder.write_json(
            "env.json",
            {
                "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
                **environment(device, None if isinstance(recipe, EnsembleRecipe) else recipe.seed),
            },
        )
        folder.write("recipe.yaml", identity(recipe))  # last: it makes the folder one that can be resumed
        return folder

    @contextmanager
    def recording(self, **about: Any) -> Iterator[None]:
        """Let summary.json say how the run stands until it says what the run came to; no report of an earlier one is left meanwhile.

        Args:
            about: what else the summary holds of a run that is going, was stopped or failed.

        Raises:
            RunFolderError: another process is at it; nothing was written.
        """

        def note(status: str) -> None:
            self.write_json("summary.json", {**about, "status": status})

        with self.alone():
            note("running")
            (self.path / "report.html").unlink(missing_ok=True)
            try:
                yield
            except BaseException as error:
                stopped = isinstance(error, BrokenPipeError) or not isinstance(error, Exception)  # nobody reads on, Ctrl-C or SIGTERM
                note(f"stopped: {type(error).__name__}" if stopped else f"failed: {type(error).__name__}: {error}")
                raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Write while no other process does; the lock of one that was killed is free.

        Raises:
            RunFolderError: another does.
        """
        try:
            lock = FileLock(self.path / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another run is writing here; stop it or wait for it, or choose another out=...") from error
        with lock:
            yield

    def write(self, name: str, text: str) -> Path:
        """Write a file whole or not at all."""
        with written_whole(self.path / name) as part:
            part.write_text(text, encoding="utf-8")
        return self.path / name

    def write_json(self, name: str, content: Any) -> Path:
        """As `write`, one JSON document; a number that is not finite has no place in it."""
        return self.write(name, json.dumps(content, indent=1, allow_nan=False))


def begun_by(folder: Path) -> RunRecipe | EnsembleRecipe:
    """The recipe of a run's folder; an option that its version knew none of has its default.

    Raises:
        RecipeError: this version does not take it.
    """
    try:
        recipe = load_document(folder / "recipe.yaml")
    except RecipeError as error:
        advice = "go on with the version that wrote it, or choose another folder"
        raise RecipeError(f"{folder}: was begun by a recipe that this version of tftq does not take; {advice}\n{error}") from error
    assert isinstance(recipe, RunRecipe | EnsembleRecipe)
    return recipe


def new_folder(recipe: RunRecipe | EnsembleRecipe, started: datetime) -> Path:
    """Where a run writes whose recipe does not say it."""
    return Path("runs") / recipe.name / f"{started:%Y-%m-%dT%H-%M-%SZ}"


def identity(recipe: RunRecipe | EnsembleRecipe) -> str:
    """The resolved recipe but for where it writes, for the folder may move: what a run's folder holds."""
    return resolved_yaml(recipe.model_copy(update={"out": None}))


def environment(device: torch.device, seed: int | None) -> dict[str, Any]:
    """What the run's figures depend on beside the recipe."""
    return {
        "tftq": installed("tftq"),  # None: run from a checkout that is not installed
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": {name: found for name in PACKAGES if (found := installed(name)) is not None},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        "driver": _driver() if device.type == "cuda" else None,
        "git": _git(),
        "seed": seed,
    }


def _driver() -> str:
    """The version of the GPU's driver, or why that is not known."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"not known: {error}"


def _git() -> dict[str, Any]:
    """The commit of the code that runs and whether it was changed since; or why that is not known."""
    here = Path(__file__).parent

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed below some other project's checkout, that one says nothing
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")  # of the package itself
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": None, "reason": f"{type(error).__name__}: not run from a git checkout, or git is missing"}
    return {"commit": commit, "dirty": bool(changes)}
