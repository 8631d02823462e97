"""The range of a tensor by each method, by hand."""

import pytest
import torch

from tftq.errors import QuantizationError
from tftq.quant.histogram import Histogram, mse_range
from tftq.quant.observers import GROUP, GROUP_WEIGHT, Method, observer_of


def seen(method: Method, *windows: list[float], percentile: float = 99.0) -> tuple[float, float]:
    observer = observer_of(method, percentile)()
    for window in windows:
        observer.observe(torch.tensor([window]))
    return observer.range()


def test_minmax_covers_everything() -> None:
    assert seen("minmax", [-1.0, 0.5], [0.0, 1.5], [0.1, 0.2]) == (-1.0, 1.5)


def test_the_moving_average_is_the_mean_at_first_and_then_forgets() -> None:
    """Of groups of 32 windows, the last of which need not be whole."""
    assert (GROUP, GROUP_WEIGHT) == (32, 0.01)
    groups = [[-1.0, 0.0], *[[0.0, 0.0]] * 31, *[[0.0, 0.0]] * 31, [-3.0, 6.0], [1.0, 3.0]]
    assert seen("moving_average", *groups[:5]) == (-1.0, 0.0)
    assert seen("moving_average", *groups[:64]) == (-2.0, 3.0)
    assert seen("moving_average", *groups) == (pytest.approx(-1.0), pytest.approx(3.0))
    many = [[0.0, 1.0]] * 32 * 150 + [[-2.0, 3.0]]
    assert seen("moving_average", *many) == (pytest.approx(-0.02), pytest.approx(1.02))


def test_the_moving_average_goes_by_windows_not_by_batches() -> None:
    x = torch.randn(230, 3, 4, generator=torch.Generator().manual_seed(1))
    ends = []
    for size in (1, 7, 230):
        observer = observer_of("moving_average", 99.0)()
        for batch in x.split(size):
            observer.observe(batch)
        ends.append(observer.range())
    assert ends[0] == ends[1] == ends[2]


def test_the_percentile_leaves_out_what_is_rare() -> None:
    values = [float(value) for value in range(200)]
    low, high = seen("percentile", values, percentile=99.0)  # two values at each end
    assert (low, high) == (pytest.approx(2, abs=1 / 8), pytest.approx(197, abs=1 / 8))
    assert seen("percentile", values, percentile=100.0) == (0.0, 199.0)


def test_mse_is_the_least_error_over_all_windows() -> None:
    values = torch.randn(1_000, generator=torch.Generator().manual_seed(1))
    histogram = Histogram(torch.device("cpu"))
    histogram.add(values)
    assert seen("mse", values[:300].tolist(), values[300:].tolist()) == mse_range(histogram)


@pytest.mark.parametrize("percentile", [50.0, 100.1, float("nan")])
def test_a_percentile_that_is_none_is_refused(percentile: float) -> None:
    with pytest.raises(QuantizationError, match=r"found percentile .*; allowed: above 50, at most 100"):
        observer_of("percentile", percentile)


def test_a_method_that_is_none_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"found method 'entropy'; allowed: minmax, moving_average, percentile, mse"):
        observer_of("entropy", 99.0)  # type: ignore[arg-type]
