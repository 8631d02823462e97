"""Runs of the whole chain that several tests look at; each is done once."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the product is imported by the tests that need it, so that a small part of the suite starts at once
    from tests.export.made import Make
    from tests.export.pairs import MakePair, Pair
    from tests.runs import DoRun, Run


# Fixtures that take seconds or a minute.
EXPENSIVE = frozenset(("make", "bars_pair", "do_run"))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file in one process; mark tests of exports and whole runs as slow.

    Files that share an expensive fixture name their common group at their top.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))
        if not EXPENSIVE.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> "Make":
    """Exports by name, see `tests.export.made`."""
    from tests.export.made import make_exports

    return make_exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="session")
def bars_pair(tmp_path_factory: pytest.TempPathFactory) -> "Pair":
    """The streaming pair of an untrained model of the shipped bars, see `tests.export.pairs`."""
    from tests.export.pairs import make_bars_pair

    return make_bars_pair(tmp_path_factory.mktemp("bars_pair"))


@pytest.fixture(scope="session")
def make_pair(make: "Make") -> "MakePair":
    """The halves of the models of `make` by name."""
    from tests.export.pairs import make_pairs

    return make_pairs(make)


@pytest.fixture(scope="session")
def static_pair(make_pair: "MakePair", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The streaming pair of the small float model, which has static columns and categories."""
    from tests.export.pairs import make_static_pair

    return make_static_pair(make_pair, tmp_path_factory.mktemp("static_pair"))


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
