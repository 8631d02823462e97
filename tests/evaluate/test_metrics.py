"""Metrics by hand, and independent of how windows are batched."""

import json
from dataclasses import asdict

import pytest
import torch

from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.metrics import ForecastMetrics, validation_summary


def test_by_hand() -> None:
    metrics = ForecastMetrics((0.1, 0.5, 0.9), torch.tensor([1.0, 2.0]))
    target = torch.tensor([[3.0, -4.0]])
    forecast = torch.tensor([[[1.0, 2.0, 4.0], [-3.0, -2.0, -2.5]]])
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
    metrics = ForecastMetrics((0.1, 0.5, 0.9), torch.ones(1))
    metrics.add(torch.tensor([[[1.0, 1.0, 2.0]], [[1.0, 1.5, 2.0]], [[1.0, 1.5, 2.0]]]), torch.tensor([[1.0], [2.0], [2.001]]))
    assert metrics.result().coverage == pytest.approx(2 / 3)
    assert metrics.result().crossing_rate == 0


def test_the_loss_is_the_training_loss_whatever_the_batches() -> None:
    torch.manual_seed(0)
    forecast, target, scale = torch.randn(17, 4, 3), torch.randn(17, 4), torch.rand(4) + 0.5
    expected = quantile_loss(forecast, target, (0.1, 0.5, 0.9), scale).item()
    results = []
    for batch in (8, 17, 1):
        metrics = ForecastMetrics((0.1, 0.5, 0.9), scale)
        for ours, theirs in zip(forecast.split(batch), target.split(batch), strict=True):
            metrics.add(ours, theirs)
        results.append(metrics.result())
        assert results[-1].loss == pytest.approx(expected, rel=1e-5)
    assert results[0].q_risk == pytest.approx(results[1].q_risk, rel=1e-12)
    assert results[0].q_risk == pytest.approx(results[2].q_risk, rel=1e-12)


def test_where_every_target_is_zero_the_risk_is_twice_the_mean_loss() -> None:
    metrics = ForecastMetrics((0.5,), torch.ones(2))
    metrics.add(torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, 2))
    assert metrics.result().q_risk == {0.5: 2.0}
    assert metrics.result().q_risk_by_step == {0.5: [1.0, 3.0]}
    assert validation_summary(metrics.result())["q_risk_by_step"] == {"0.5": [1.0, 3.0]}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_batch_that_is_not_finite_is_left_out_and_told(bad: float) -> None:
    metrics = ForecastMetrics((0.5,), torch.ones(1))
    assert not metrics.add(torch.tensor([[[bad]]]), torch.ones(1, 1))
    assert not metrics.add(torch.ones(1, 1, 1), torch.tensor([[bad]]))
    assert metrics.add(torch.ones(1, 1, 1), torch.ones(1, 1))
    assert metrics.result().windows == 1


def test_the_result_is_json() -> None:
    metrics = ForecastMetrics((0.1, 0.5), torch.ones(1))
    metrics.add(torch.ones(1, 1, 2, requires_grad=True), torch.zeros(1, 1))
    assert json.loads(json.dumps(asdict(metrics.result()), allow_nan=False))["q_risk"].keys() == {"0.1", "0.5"}
