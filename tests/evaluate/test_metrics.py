"""Metrics by hand, and independent of how windows are batched."""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

from tftq.evaluate import loss
from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.metrics import ForecastMetrics, pinball, validation_summary


def test_by_hand() -> None:
    metrics = ForecastMetrics((0.1, 0.5, 0.9), [1.0, 2.0])
    target = np.array([[3.0, -4.0]])
    forecast = np.array([[[1.0, 2.0, 4.0], [-3.0, -2.0, -2.5]]])
    # step 0: errors 2, 1, -1 -> 0.2, 0.5, 0.1; covered
    # step 1: errors -1, -2, -1.5 -> 0.9, 1.0, 0.15; below the lowest quantile; the highest crosses the median
    assert metrics.add(forecast, target)
    found = metrics.result()
    assert found.windows == 1
    assert found.loss == pytest.approx((0.8 + 2.05 / 2) / 6)
    assert found.q_risk == pytest.approx({0.1: 2 * 1.1 / 7, 0.5: 2 * 1.5 / 7, 0.9: 2 * 0.25 / 7})
    assert found.q_risk_by_step[0.5] == pytest.approx([2 * 0.5 / 3, 2 * 1.0 / 4])
    assert found.coverage == 0.5
    assert found.crossing_rate == 0.5


def test_the_bounds_count_as_covered_and_equal_quantiles_do_not_cross() -> None:
    metrics = ForecastMetrics((0.1, 0.5, 0.9), np.ones(1))
    metrics.add(np.array([[[1.0, 1.0, 2.0]], [[1.0, 1.5, 2.0]], [[1.0, 1.5, 2.0]]]), np.array([[1.0], [2.0], [2.001]]))
    assert metrics.result().coverage == pytest.approx(2 / 3)
    assert metrics.result().crossing_rate == 0


def test_the_loss_is_the_training_loss_whatever_the_batches() -> None:
    torch.manual_seed(0)
    forecast, target, scale = torch.randn(17, 4, 3), torch.randn(17, 4), torch.rand(4) + 0.5
    expected = quantile_loss(forecast, target, (0.1, 0.5, 0.9), scale).item()
    results = []
    for batch in (8, 17, 1):
        metrics = ForecastMetrics((0.1, 0.5, 0.9), scale.numpy())
        for ours, theirs in zip(forecast.split(batch), target.split(batch), strict=True):
            metrics.add(ours.numpy(), theirs.numpy())
        results.append(metrics.result())
        assert results[-1].loss == pytest.approx(expected, rel=1e-5)
    assert results[0].q_risk == pytest.approx(results[1].q_risk, rel=1e-12)
    assert results[0].q_risk == pytest.approx(results[2].q_risk, rel=1e-12)


def test_where_every_target_is_zero_the_risk_is_twice_the_mean_loss() -> None:
    metrics = ForecastMetrics((0.5,), np.ones(2))
    metrics.add(np.array([[[1.0], [3.0]]]), np.zeros((1, 2)))
    assert metrics.result().q_risk == {0.5: 2.0}
    assert metrics.result().q_risk_by_step == {0.5: [1.0, 3.0]}
    assert validation_summary(metrics.result()).q_risk_by_step == {"0.5": [1.0, 3.0]}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_batch_that_is_not_finite_is_left_out_and_reported(bad: float) -> None:
    metrics = ForecastMetrics((0.5,), np.ones(1))
    assert not metrics.add(np.array([[[bad]]]), np.ones((1, 1)))
    assert not metrics.add(np.ones((1, 1, 1)), np.array([[bad]]))
    assert metrics.add(np.ones((1, 1, 1)), np.ones((1, 1)))
    assert metrics.result().windows == 1


def test_the_result_is_json() -> None:
    metrics = ForecastMetrics((0.1, 0.5), np.ones(1))
    metrics.add(np.ones((1, 1, 2), np.float16), np.zeros((1, 1), np.float32))
    assert json.loads(json.dumps(asdict(metrics.result()), allow_nan=False))["q_risk"].keys() == {"0.1", "0.5"}


def test_the_pinball_loss_is_the_one_that_training_minimises() -> None:
    torch.manual_seed(1)
    forecast, target, quantiles = torch.randn(9, 4, 3, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64), (0.1, 0.5, 0.9)
    ours = pinball(forecast.numpy(), target.numpy(), quantiles)
    assert (ours == loss.pinball(forecast, target, quantiles).numpy()).all()
    assert pinball(forecast.float().numpy(), target.float().numpy(), quantiles).dtype == np.float64


def test_metrics_need_no_torch() -> None:
    code = "import sys, tftq.evaluate.metrics; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
