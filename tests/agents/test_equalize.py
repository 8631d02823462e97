"""Equalized layers compute what they did, with hidden units of ranges nearer to each other."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tftq.agents.equalize import equalize


def network(seed: int = 0, *, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        made[0].weight *= torch.tensor([100.0, 10.0, 1.0, 0.1, 1.0])[:, None]
    return made


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), bias=st.booleans())
def test_what_is_computed_stays(seed: int, bias: bool) -> None:
    before = network(seed, bias=bias)
    after = copy.deepcopy(before)
    x = torch.randn(32, 6)
    equalize(list(after), x.split(8))
    assert torch.allclose(after(x), before(x), rtol=1e-4, atol=1e-4 * float(before(x).detach().abs().max()))


def test_ranges_come_nearer_by_their_square_root() -> None:
    layers = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[8.0], [2.0]]))
        layers[2].weight.copy_(torch.tensor([[1.0, 3.0]]))
    equalize(list(layers), [torch.tensor([[0.5]]), torch.tensor([[1.0]])])  # ranges 8 and 2: the second is divided by 1/2
    assert layers[0].weight.flatten().tolist() == [8.0, 4.0]
    assert layers[2].weight.flatten().tolist() == [1.0, 1.5]


@pytest.mark.parametrize("dead", [1, 5])
def test_units_that_never_answer_do_no_harm(dead: int) -> None:
    layers = network()
    with torch.no_grad():
        layers[0].weight[:dead], layers[0].bias[:dead] = 0, -1
    x = torch.randn(16, 6)
    before = layers(x)
    equalize(list(layers), [x])
    assert torch.allclose(layers(x), before, rtol=1e-4, atol=1e-4)
    assert all(parameter.isfinite().all() for parameter in layers.parameters())
