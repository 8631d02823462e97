import pytest
import torch
from torch.nn import functional as F

from tftq.model.attention import InterpretableAttention
from tftq.model.layers import GatedResidualNetwork, QuantileHeads


def test_grn_is_the_papers_equations() -> None:
    torch.manual_seed(0)
    grn = GatedResidualNetwork(3, 8, 5, context=2, dropout=0.1, folded=False).eval()
    a, c = torch.randn(4, 3), torch.randn(4, 2)
    eta2 = F.elu(a @ grn.input.weight.T + grn.input.bias + c @ grn.context.weight.T)  # eq. 4
    eta1 = eta2 @ grn.intermediate.weight.T + grn.intermediate.bias  # eq. 3
    value, gate = (eta1 @ grn.gate.weight.T + grn.gate.bias).split(5, dim=-1)  # eq. 5
    expected = F.layer_norm(a @ grn.skip.weight.T + grn.skip.bias + torch.sigmoid(gate) * value, (5,), eps=1e-3)  # eq. 2
    torch.testing.assert_close(grn(a, c), expected)


def test_quantiles_cannot_cross_and_the_median_is_the_linear_map() -> None:
    heads = QuantileHeads(6, (0.02, 0.1, 0.5, 0.9, 0.98))
    x = torch.randn(1000, 6) * 50
    forecast = heads(x)
    assert bool((forecast.diff(dim=-1) >= 0).all())
    torch.testing.assert_close(forecast[:, 2], heads.linear(x)[:, 2])


def test_quantile_steps_by_hand() -> None:
    heads = QuantileHeads(1, (0.1, 0.5, 0.9))
    with torch.no_grad():
        heads.linear.weight.zero_()
        heads.linear.bias.copy_(torch.tensor([0.0, 5.0, 1.0]))
    low, high = 5 - 0.6931472, 5 + 1.3132617  # softplus(0), softplus(1)
    torch.testing.assert_close(heads(torch.ones(1, 1)), torch.tensor([[low, 5.0, high]]))


def test_a_row_that_sees_nothing_but_itself_stays_finite() -> None:
    attention = InterpretableAttention(8, 2, dropout=0.0)
    x = torch.randn(2, 1, 8, requires_grad=True)  # one step: every other position is masked
    y = attention(x, horizon=1)
    y.sum().backward()
    assert bool(torch.isfinite(y).all()) and bool(torch.isfinite(x.grad).all())
    torch.testing.assert_close(attention.weights(x, 1), torch.ones(2, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision(dtype: torch.dtype) -> None:
    """The mask value must be one that the dtype can hold."""
    attention = InterpretableAttention(8, 2, dropout=0.0).to(dtype)
    x = torch.randn(2, 7, 8, dtype=dtype)
    weights = attention.weights(x, horizon=3)  # [batch, horizon, time]
    assert bool(torch.isfinite(weights).all())
    assert bool((weights[:, 0, 5:] == 0).all()), "a step looked beyond itself"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_is_fp32_under_autocast(dtype: torch.dtype) -> None:
    """Scores beyond what FP16 can hold (65,504), and weights whose rows sum to one closer than bf16 can tell."""
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2, dropout=0.0)
    x = torch.randn(2, 7, 8) * 1000
    with torch.autocast("cpu", dtype):
        weights = attention.weights(x, horizon=3)
        forecast = attention(x, horizon=3)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert bool(torch.isfinite(forecast).all())


def test_quantile_steps_are_fp32_under_autocast() -> None:
    heads = QuantileHeads(6, (0.1, 0.5, 0.9))
    x = torch.randn(50, 6)
    with torch.autocast("cpu", torch.bfloat16):
        forecast, raw = heads(x), heads.linear(x).float()
    assert forecast.dtype == torch.float32
    torch.testing.assert_close(forecast[:, 2] - forecast[:, 1], F.softplus(raw[:, 2]), rtol=1e-5, atol=1e-5)


def test_attention_averages_the_heads() -> None:
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2, dropout=0.0)
    x = torch.randn(1, 5, 8)
    maps = []
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        query, key = attention.query(x)[0, -2:, part], attention.key(x)[0, :, part]
        scores = query @ key.T / 2  # the square root of 4
        scores[0, 4] = -torch.inf
        maps.append(scores.softmax(-1))
    expected = (maps[0] + maps[1]) / 2 @ attention.value(x)[0] @ attention.output.weight.T
    torch.testing.assert_close(attention(x, 2)[0], expected)
