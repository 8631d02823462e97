"""The quantile loss against values worked out by hand and against its laws."""

import pytest
import torch

from tftq.evaluate.loss import pinball, quantile_loss


def test_pinball_by_hand() -> None:
    forecast = torch.tensor([[[1.0, 2.0, 4.0]]])
    target = torch.tensor([[3.0]])
    # errors 2, 1, -1: 0.1 * 2, 0.5 * 1, (1 - 0.9) * 1
    torch.testing.assert_close(pinball(forecast, target, (0.1, 0.5, 0.9)), torch.tensor([[[0.2, 0.5, 0.1]]]))


def test_each_step_is_divided_by_its_own_scale() -> None:
    forecast = torch.zeros(1, 2, 1)
    target = torch.tensor([[2.0, 30.0]])
    loss = quantile_loss(forecast, target, (0.5,), torch.tensor([1.0, 10.0]))
    assert loss.item() == pytest.approx((1.0 + 1.5) / 2)


def test_the_quantile_of_the_data_minimises_the_loss() -> None:
    data = torch.arange(1.0, 100.0)[:, None]  # 99 values: the q quantile is 100 q
    candidates = torch.arange(0.0, 101.0)
    for quantile in (0.1, 0.5, 0.9):
        losses = [quantile_loss(torch.full((99, 1, 1), c), data, (quantile,), torch.ones(1)).item() for c in candidates.tolist()]
        assert candidates[torch.tensor(losses).argmin()].item() == 100 * quantile


def test_half_precision_is_computed_in_fp32_also_under_autocast() -> None:
    forecast = torch.full((1, 1, 1), 2048.0, dtype=torch.bfloat16)
    target = torch.tensor([[2049.0]])  # not a bf16 number: the error would vanish
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = quantile_loss(forecast, target, torch.tensor([0.5]), torch.ones(1))
    assert loss.dtype == torch.float32
    assert loss.item() == 0.5
