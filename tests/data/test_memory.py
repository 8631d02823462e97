"""Opening bars holds their float32 array and little more."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.data.helpers import ROOT
from tftq.data.synthetic import bars

COUNT = 60_000
ARRAY = COUNT * 225 * 4 / 1e6  # MB
CODE = 64  # MB: pages of libraries that are first used, and Arrow's own pools, whatever the size of the data


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bars") / "ES.parquet"
    pyarrow.parquet.write_table(bars(COUNT), path, row_group_size=2**13)
    return path


def opened(*paths: Path) -> dict[str, float]:
    """The row for opening, of the benchmark's own measurement in a fresh process."""
    command = [sys.executable, str(ROOT / "benchmarks" / "data.py"), "--updates", "1", "--measure", *map(str, paths)]
    opening, _ = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)
    assert opening["bars"] == COUNT and opening["array_mb"] == ARRAY
    return opening


def test_no_copy_of_the_array_is_made(path: Path) -> None:
    assert opened(path)["resident_growth_mb"] < 1.2 * ARRAY + CODE


def test_rows_in_a_cache_are_no_memory_of_the_process(path: Path, tmp_path: Path) -> None:
    assert opened(path, tmp_path)["anonymous_growth_mb"] < 0.2 * ARRAY + CODE
