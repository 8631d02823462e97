"""Scalings are fitted on the training part alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.helpers import SHARED, bar_columns, bars_recipe, table_columns, table_recipe, write
from tftq.data.load import load_datasets
from tftq.data.scaling import fit_columns, moments
from tftq.spec.inputs import Column


def test_by_hand() -> None:
    values = np.zeros((100, 4), np.float32)
    values[:, 0] = np.tile([1, 3], 50)  # mean 2, standard deviation 1
    values[0, 1] = 10  # mean 0.1, standard deviation sqrt(0.99): the outlier is 9.95 of them away
    values[:, 2] = 0.1
    values[:, 3] = np.arange(100) % 3
    columns = (Column("plain", "observed"), Column("spike", "observed"), Column("still", "known"), Column("kind", "known", categories=5))
    scaling, notes = fit_columns(columns, [values])
    assert scaling.center.tolist() == pytest.approx([2, 0.1, 0.1, 0])
    assert scaling.scale.tolist() == pytest.approx([1, 0.99**0.5, 1, 1])
    assert scaling.tailed.tolist() == [False, True, False, False]
    assert scaling.low.tolist() == pytest.approx([-1, np.arcsinh(-0.1 / 0.99**0.5), 0, 0])
    assert scaling.high.tolist() == pytest.approx([1, np.arcsinh(9.9 / 0.99**0.5), 0, 4])
    assert notes == ["constant over the training part: still"]
    assert {array.dtype for array in (scaling.center, scaling.scale, scaling.low, scaling.high)} == {np.dtype(np.float32)}
    assert scaling.tailed.dtype == bool


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_moments_do_not_depend_on_the_blocks(sizes: list[int], seed: int) -> None:
    # Far from zero, where sums of squares fail.
    values = (1e6 + np.random.default_rng(seed).normal(size=(sum(sizes), 3))).astype(np.float32)
    found = moments(np.split(values, np.cumsum(sizes)[:-1]))
    exact = values.astype(np.float64)
    assert np.array_equal(found.low, exact.min(0)) and np.array_equal(found.high, exact.max(0))
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.deviation, exact.std(0), rtol=1e-8, atol=1e-9)


def test_validation_changes_nothing(tmp_path: Path) -> None:
    columns = table_columns(200)
    before = load_datasets(table_recipe(write(tmp_path / "a.parquet", columns)))
    border = int(before.validation.target_times([0])[0, 0])
    columns["y"][columns["time"].astype(np.int64) >= border] = 1e6
    columns["x"][columns["time"].astype(np.int64) >= border] = -1e6
    after = load_datasets(table_recipe(write(tmp_path / "a.parquet", columns)))
    for one, other in zip(vars(before.scaling.history).values(), vars(after.scaling.history).values(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(before.target_scaling.scale, after.target_scaling.scale)
    assert np.array_equal(before.target_scaling.center, after.target_scaling.center)


def test_target_of_a_table_and_of_bars(tmp_path: Path) -> None:
    table = load_datasets(table_recipe(write(tmp_path / "a.parquet", table_columns(50))))
    touched = np.arange(int(table.train.starts[-1]) + 6)  # y counts rows; lookback 4 and horizon 2
    assert table.target_scaling.center.tolist() == pytest.approx([touched.mean()] * 2)
    assert table.target_scaling.scale.tolist() == pytest.approx([touched.std()] * 2)

    bars = load_datasets(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(400))))
    targets = bars.train.batch(range(len(bars.train))).target.astype(np.float64)
    assert bars.target_scaling.center.tolist() == [0.0] * 10
    np.testing.assert_allclose(bars.target_scaling.scale, targets.std(axis=0), rtol=1e-6)


def test_a_target_that_stands_still(tmp_path: Path) -> None:
    columns = table_columns(50) | {"y": np.full(50, 0.1)}
    datasets = load_datasets(table_recipe(write(tmp_path / "a.parquet", columns)))
    assert datasets.target_scaling.scale.tolist() == [1, 1]
    assert "the target is constant over the training part at 2 of 2 steps; scaled by 1" in datasets.notes
    assert "constant over the training part: y" in datasets.notes


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")
def test_real_bars() -> None:
    datasets = load_datasets(bars_recipe(SHARED / "es" / "ESZ3_1m.parquet", warmup=50))
    history = datasets.train.batch(np.arange(len(datasets.train))).history
    assert np.isfinite(history).all()
    scaling = datasets.scaling.history
    z = (history.reshape(-1, history.shape[-1]) - scaling.center) / scaling.scale
    z = np.where(scaling.tailed, np.arcsinh(z), z)
    assert (z >= scaling.low).all() and (z <= scaling.high).all()
    assert np.abs(z).max() <= 6
