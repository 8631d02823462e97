"""The folder of a run: which one it may write to, and how its files are written."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tftq.errors import RecipeError, RunFolderError
from tftq.io import written_whole
from tftq.recipe.load import deciding_yaml, load_document, resolved_yaml
from tftq.recipe.schema import JobRecipe

LOCK = ".lock"  # held by the process that writes


class RunFolder:
    """Where a run writes.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, recipe: JobRecipe, environment: Mapping[str, Any], *, resume: bool) -> "RunFolder":
        """Begin a run in a new or empty folder, or resume one of the same recipe, whose `RecipeType.not_hashed` may differ.

        Args:
            recipe: of the run.
            environment: the content of env.json except the time of the start.
            resume: whether to resume.

        Raises:
            RunFolderError: the folder is not empty or, to resume, belongs to another recipe.
            RecipeError: this version does not accept the folder's own recipe.
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
            raise RunFolderError(f"{path}: is not empty; choose another out=..., remove it, or continue with --resume")
        path.mkdir(parents=True, exist_ok=True)
        folder.write_json("env.json", {"started": f"{started:%Y-%m-%dT%H:%M:%SZ}", **environment})
        folder.write("recipe.yaml", identity(recipe))  # last: it makes the folder one that can be resumed
        return folder

    @contextmanager
    def recording(self, **about: Any) -> Iterator[None]:
        """Keep the status of the run in summary.json while it is running and where it stops or fails; remove the report of an earlier run.

        Args:
            about: further entries of that summary.

        Raises:
            RunFolderError: another process writes there; nothing was written.
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
        """Lock the folder against other processes; a process that was killed holds no lock.

        Raises:
            RunFolderError: another process writes there.
        """
        try:
            lock = FileLock(self.path / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another run is writing here; stop it or wait for it, or choose another out=...") from error
        with lock:
            yield

    def write(self, name: str, text: str) -> Path:
        """Write a file completely or not at all."""
        with written_whole(self.path / name) as part:
            part.write_text(text, encoding="utf-8")
        return self.path / name

    def write_json(self, name: str, content: Any) -> Path:
        """Write one JSON document as `write` does; numbers must be finite."""
        return self.write(name, json.dumps(content, indent=1, allow_nan=False))


def begun_by(folder: Path) -> JobRecipe:
    """Read the recipe of a run's folder; an option that its version did not have takes its default.

    Raises:
        RecipeError: this version does not accept it.
    """
    try:
        recipe = load_document(folder / "recipe.yaml")
    except RecipeError as error:
        advice = "use the version that wrote it, or choose another folder"
        raise RecipeError(f"{folder}: was begun by a recipe that this version of tftq does not take; {advice}\n{error}") from error
    assert isinstance(recipe, JobRecipe)
    return recipe


def new_folder(recipe: JobRecipe, started: datetime) -> Path:
    """Name the folder of a run whose recipe has no `out`."""
    return Path("runs") / recipe.name / f"{started:%Y-%m-%dT%H-%M-%SZ}"


def identity(recipe: JobRecipe) -> str:
    """Return the resolved recipe without `out`, as a run's folder holds it: the folder may move."""
    return resolved_yaml(recipe.model_copy(update={"out": None}))
