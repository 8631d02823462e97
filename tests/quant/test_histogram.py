"""The histogram against numpy, whatever is counted and in whatever portions."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tftq.quant.histogram import BINS, Histogram, mse_range, percentile_range, squared_errors

CPU = torch.device("cpu")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
VALUES = st.lists(FLOATS, min_size=1, max_size=60)


def histogram_of(*parts: Tensor) -> Histogram:
    histogram = Histogram(CPU)
    for part in parts:
        histogram.add(part)
    return histogram


@settings(deadline=None, max_examples=60)
@given(VALUES, st.data())
def test_counts_do_not_depend_on_portions_or_order(values: list[float], data: st.DataObject) -> None:
    at_once = histogram_of(torch.tensor(values))
    shuffled = torch.tensor(data.draw(st.permutations(values)))
    cuts = sorted(data.draw(st.lists(st.integers(1, max(len(values) - 1, 1)), max_size=4, unique=True))) if len(values) > 1 else []
    in_parts = histogram_of(*torch.tensor_split(shuffled, cuts))
    assert (in_parts.width, in_parts.low, in_parts.high) == (at_once.width, at_once.low, at_once.high)
    assert torch.equal(in_parts.counts, at_once.counts)


@settings(deadline=None, max_examples=60)
@given(VALUES)
@example([2.0**-149])  # the smallest float32
def test_counts_are_those_of_numpy(values: list[float]) -> None:
    histogram = histogram_of(*(torch.tensor([value]) for value in values))
    array = np.float32(values).astype(float)
    edges = (np.arange(BINS + 1) - BINS // 2) * histogram.width
    assert edges[0] <= array.min() and array.max() < edges[-1]
    bins = np.searchsorted(edges, array, side="right") - 1
    np.testing.assert_array_equal(histogram.counts.numpy(), np.bincount(bins, minlength=BINS))
    assert (histogram.low, histogram.high) == (array.min(), array.max())
    if array.any():  # no wider than need be: the farthest value lies in the outer half
        assert np.abs(array).max() >= edges[-1] / 2


def test_zeros_alone_are_counted() -> None:
    histogram = histogram_of(torch.zeros(5))
    assert (histogram.low, histogram.high, int(histogram.counts.sum())) == (0.0, 0.0, 5)
    assert percentile_range(histogram, 99.0) == mse_range(histogram) == (0.0, 0.0)


def test_pairs_about_zero_are_merged_by_hand() -> None:
    """Four bins about zero become two where a value of 1 needs bins twice as wide."""
    small = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / 2048
    histogram = histogram_of(small, torch.tensor([0.999]))
    middle = slice(BINS // 2 - 4, BINS // 2 + 4)
    assert histogram.width == 1 / 2048 and histogram.counts[middle].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    histogram.add(torch.tensor([1.0]))
    assert histogram.width == 1 / 1024 and histogram.counts[middle].tolist() == [0, 0, 0, 2, 2, 0, 0, 0]


@settings(deadline=None, max_examples=60)
@given(VALUES, st.sampled_from([50.5, 75.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_numpys_to_one_bin(values: list[float], percentile: float) -> None:
    histogram = histogram_of(torch.tensor(values))
    low, high = percentile_range(histogram, percentile)
    array = np.float32(values).astype(float)
    exact_high = np.percentile(array, percentile, method="inverted_cdf")
    exact_low = -np.percentile(-array, percentile, method="inverted_cdf")
    assert exact_low - histogram.width <= low <= exact_low and exact_high <= high <= exact_high + histogram.width


def test_a_percentile_of_many_values() -> None:
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    histogram = histogram_of(*values.split(777))
    found, exact = percentile_range(histogram, 99.9), np.percentile(values.numpy(), [0.1, 99.9])
    assert np.abs(np.array(found) - exact).max() <= 2 * histogram.width


@settings(deadline=None, max_examples=40)
@given(VALUES)
def test_least_error_is_never_worse_than_the_extremes(values: list[float]) -> None:
    histogram = histogram_of(torch.tensor(values))
    ends = torch.tensor([mse_range(histogram), (min(histogram.low, 0.0), max(histogram.high, 0.0))])
    chosen, extremes = squared_errors(histogram, ends[:, 0], ends[:, 1]).tolist()
    assert chosen <= extremes


def test_least_error_cuts_an_outlier_off_and_keeps_what_is_even() -> None:
    """Two million values up to 1 and one of 3: (3 - h)² + 2·10⁶ h² / 255² / 12 falls with h down to 0.84, where h would cut values."""
    even = torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    low, high = mse_range(histogram_of(*[even] * 100, torch.tensor([3.0])))
    assert low == 0 and high == pytest.approx(1, abs=0.05)
    low, high = mse_range(histogram_of(even * 3 - 1))
    assert (low, high) == pytest.approx((-1, 2), rel=0.02)


def test_the_error_is_that_of_quantizing_the_values() -> None:
    """Against numpy on the values themselves: bins are a quarter of a step or less."""
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(2))
    low, high = -2.0, 2.5
    scale = 4.5 / 255
    zero_point = np.rint(2 / scale)
    array = values.numpy().astype(float)
    rounded = (np.clip(np.rint(array / scale) + zero_point, 0, 255) - zero_point) * scale
    found = squared_errors(histogram_of(values), torch.tensor([low]), torch.tensor([high])).item()
    assert found == pytest.approx(((rounded - array) ** 2).sum(), rel=0.02)
