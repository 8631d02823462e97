"""Runs of the whole chain that several tests look at; each is done once."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tftq.recipe.loading import load_recipe
from tftq.recipe.schema import Recipe
from tftq.run import run
from tftq.train.plan import Planner, StagePlan

ROOT = Path(__file__).parents[1]
MADE_ONCE = ("make", "bars_run")  # fixtures that take long and serve several files
OF_BARS_RUN = ("tests/ensemble/test_streaming.py", "tests/test_compare.py", "tests/test_predict.py", "tests/test_run.py")
WHOLE_RUN = "do_run"  # what takes long in one file asks for this fixture, or is marked as slow


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would begin with the groups of the most tests, which are the shortest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by the names of files: pytest 9.2 shows xdist 3.8's scheduler no marks, which sent each test where there was room."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            return "make" if path.startswith("tests/export/") else "bars_run" if path in OF_BARS_RUN else path

    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, let files that share such a fixture run in one of them, and every other file in one too.

    What takes longest comes first, so that no process has a long group left when the others are done.
    """
    groups: dict[Path, str] = {}
    places: dict[str, int] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        shared = [name for name in MADE_ONCE if name in fixtures]
        groups[item.path] = shared[0] if shared else groups.get(item.path, str(item.path))
    for item in items:
        group = groups[item.path]
        item.add_marker(pytest.mark.xdist_group(group))
        if group in MADE_ONCE:
            places[group] = MADE_ONCE.index(group)
        else:
            long = WHOLE_RUN in getattr(item, "fixturenames", ()) or item.get_closest_marker("slow") is not None
            places[group] = min(places.get(group, len(MADE_ONCE) + 1), len(MADE_ONCE) + (not long))
    items.sort(key=lambda item: places[groups[item.path]])  # a stable sort: each file's own order stays


@pytest.fixture(scope="session", autouse=True)
def operators_of_the_exporter() -> Iterator[None]:
    """Torch builds the table of what it can export anew at each export, for half a second; nothing is ever added to it here."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what it printed and its summary.json."""

    folder: Path
    printed: str
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def do_run() -> Callable[..., Run]:
    plan_stage, plans = Planner.plan_stage, dict[str, StagePlan]()

    def plan_once(self: Planner, recipe: Recipe, stage: str, batch_size: int) -> StagePlan:
        """Planning takes seconds, and most of these runs differ in what no plan depends on."""
        of_planner = self.inputs, self.device, self.windows, self.validation_windows
        key = repr((of_planner, recipe.data, recipe.model, recipe.train, recipe.validate, recipe.quant, stage, batch_size))
        if key not in plans:
            plans[key] = plan_stage(self, recipe, stage, batch_size)
        return plans[key]

    def do(recipe: str, folder: Path, *overrides: str, resume: bool = False) -> Run:
        console = Console(file=io.StringIO(), width=200)
        loaded = load_recipe(ROOT / "recipes" / recipe, [*overrides, f"out={folder}", "export.publish=false"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Planner, "plan_stage", plan_once)
            run(loaded, resume=resume, console=console)
        assert isinstance(console.file, io.StringIO)
        return Run(folder, console.file.getvalue(), json.loads((folder / "summary.json").read_text()))

    return do


SMALL = ("model.hidden=16", "model.knots=8", "train.epochs=2", "quant.qat.epochs=1", "quant.calibration_windows=64")


@pytest.fixture(scope="session")
def bars_run(do_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """recipes/qat_int8.yaml, smaller still, on the shipped bars."""
    return do_run("qat_int8.yaml", tmp_path_factory.mktemp("bars") / "run", *SMALL)


@pytest.fixture(scope="session")
def structured_run(do_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """recipes/structured_qat.yaml, a few epochs of it, on the table whose structure is known."""
    folder = tmp_path_factory.mktemp("structured") / "run"
    return do_run("structured_qat.yaml", folder, "train.epochs=2", "quant.qat.epochs=1")
