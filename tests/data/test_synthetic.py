"""The files of test_data/ are what their generator writes, and hold the structure that they promise."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.helpers import MINUTE, ROOT, bars_recipe, table_recipe
from tftq.data import synthetic
from tftq.data.bars import read_bars
from tftq.data.load import load_datasets

NAMES = ("ES_FUT_small.parquet", "structured.parquet")
STRUCTURED = {
    "target": "sales",
    "known": ["promotion"],
    "observed": ["visits"],
    "calendar": ["hour", "weekday"],
    "lookback": 60,
    "horizon": 10,
}


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    subprocess.run([sys.executable, "-m", "tftq.data.synthetic", folders[0]], check=True, cwd=ROOT)
    synthetic.write(folders[1])
    for name in NAMES:
        digests = {hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in folders}
        assert len(digests) == 1


@pytest.mark.parametrize("name, make", [(NAMES[0], synthetic.bars), (NAMES[1], synthetic.structured)])
def test_committed_files_are_the_generators(name: str, make: object) -> None:
    path = ROOT / "test_data" / name
    assert path.stat().st_size < 200_000
    assert pq.read_table(path).equals(make())  # type: ignore[operator]


def test_small_bars_imitate_es() -> None:
    bars = read_bars(ROOT / "test_data" / NAMES[0])
    assert len(bars) == 1000
    assert (np.diff(bars.times) == MINUTE).all()
    for name in ("open", "high", "low", "close"):
        assert (bars.columns[name] % 0.25 == 0).all()
    hour = bars.times // (60 * MINUTE) % 24
    night, session = hour < 7, (hour >= 15) & (hour < 20)
    size = np.abs(np.diff(np.log(bars.columns["close"]), prepend=np.nan))
    assert np.nanmean(size[session]) > 1.5 * np.nanmean(size[night])
    assert bars.columns["volume"][session].mean() > 3 * bars.columns["volume"][night].mean()


def test_881_windows() -> None:
    path = ROOT / "test_data" / NAMES[0]
    datasets = load_datasets(bars_recipe(path, warmup=50))
    assert len(datasets.train) + len(datasets.validation) + 9 == 881 == 1000 - 50 - 69
    assert len(datasets.train.inputs.history) == 225
    assert len(datasets.train.inputs.future) == 11


@pytest.mark.parametrize("season", [24, 168])
def test_knowing_the_structure_is_four_times_as_good_as_the_season_before(season: int) -> None:
    datasets = load_datasets(table_recipe(ROOT / "test_data" / NAMES[1], season=season, **STRUCTURED))
    windows = datasets.validation
    indices = np.arange(len(windows))
    batch = windows.batch(indices)
    hours = (windows.target_times(indices) - synthetic.TABLE_BEGIN) // synthetic.HOUR
    oracle = synthetic.season(hours) + 40 * batch.future[:, :, 0]
    error_of_oracle = np.abs(batch.target - oracle).mean()
    error_of_naive = np.abs(batch.target - windows.naive(indices)).mean()
    assert error_of_oracle < 0.25 * error_of_naive
