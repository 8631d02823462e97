"""Parameters, gradients and optimizer state, counted by hand."""

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tftq.memory.components import component_bytes, state_tensors, storage_bytes


def test_each_component_by_hand() -> None:
    model = nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4))
    weights = 4 * (10 * 4 + 4 + 4 + 4)
    buffers = 4 * (4 + 4) + 8  # running mean and variance, and a counter of int64
    assert component_bytes(model) == (weights + buffers, 0, 0)
    optimizer = torch.optim.AdamW(model.parameters())
    assert component_bytes(model, optimizer) == (weights + buffers, 0, 0)
    model(torch.randn(3, 10)).sum().backward()
    optimizer.step()
    assert component_bytes(model, optimizer) == (weights + buffers, weights, 2 * weights + 4 * 4)
    assert len(state_tensors(optimizer)) == 12


def test_shared_storages_count_once() -> None:
    model = nn.ModuleList([nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)])
    assert component_bytes(model).parameters == 800
    model[1].weight = model[0].weight
    assert component_bytes(model).parameters == 400
    x = torch.zeros(100)
    assert storage_bytes([x, x[:3], x.view(10, 10)]) == 400
    assert storage_bytes([TwoTensor(x, torch.zeros(100))]) == 800


def test_state_in_lists_is_found() -> None:
    parameter = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.LBFGS([parameter])
    optimizer.state[parameter] = {"old": [torch.zeros(5), torch.zeros(5)], "count": 3}
    assert storage_bytes(state_tensors(optimizer)) == 40
