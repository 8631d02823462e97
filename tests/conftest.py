"""Runs of the whole chain that several tests look at; each is done once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the product is imported by the tests that need it, so that a small part of the suite starts at once
    from tests.export.made import Make
    from tests.runs import DoRun, Run

MADE_ONCE = ("make", "bars_run")  # fixtures that take long and serve several files
OF_BARS_RUN = ("tests/ensemble/test_streaming.py", "tests/jobs/test_compare.py", "tests/jobs/test_predict.py", "tests/jobs/test_run.py")
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
            return "make" if path.startswith(("tests/export/", "tests/serve/")) else "bars_run" if path in OF_BARS_RUN else path

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


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> "Make":
    """Exports by name, see `tests.export.made`."""
    from tests.export.made import make_exports

    return make_exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="session")
def do_run() -> "DoRun":
    """Does a run of a recipe, see `tests.runs`."""
    from tests.runs import make_runner

    return make_runner()


@pytest.fixture(scope="session")
def bars_run(do_run: "DoRun", tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """recipes/qat_int8.yaml, smaller still, on the shipped bars."""
    from tests.runs import SMALL

    return do_run("qat_int8.yaml", tmp_path_factory.mktemp("bars") / "run", *SMALL)


@pytest.fixture(scope="session")
def structured_run(do_run: "DoRun", tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """recipes/structured_qat.yaml, a few epochs of it, on the table whose structure is known."""
    folder = tmp_path_factory.mktemp("structured") / "run"
    return do_run("structured_qat.yaml", folder, "train.epochs=2", "quant.qat.epochs=1")
