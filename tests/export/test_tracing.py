"""A tiny network traced with other numbers, and with other everything else."""

import copy
from collections.abc import Callable

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tftq.export import tracing


class Network(nn.Module):
    def __init__(self, power: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.zeros(3))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) + self.shift) ** self.power


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks that the exporter is given; it has seen none before."""
    given: list[nn.Module] = []
    export = torch.onnx.export
    monkeypatch.setattr(tracing, "_graphs", {})
    monkeypatch.setattr(torch.onnx, "export", lambda network, *args, **options: given.append(network) or export(network, *args, **options))
    return given


def assert_computes_the_same(network: nn.Module, columns: int = 3) -> None:
    x = torch.rand(5, columns)
    graph = tracing.trace(network.eval(), {"x": (2, columns)}, ("y",)).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    torch.testing.assert_close(torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0]), network(x).detach())


def test_networks_that_differ_in_numbers_alone_are_traced_once_and_keep_their_own(traces: list[nn.Module]) -> None:
    first, second = Network(), Network()
    second.shift.fill_(4.0)
    for network in (first, second, first):
        assert_computes_the_same(network)
    assert traces == [first]


def other_power(network: Network) -> None:
    network.power = 3


def other_shape(network: Network) -> None:
    network.shift = torch.ones(1)


def other_layer(network: Network) -> None:
    network.linear = nn.Sequential(nn.Linear(3, 3), nn.ReLU())  # type: ignore[assignment]


@pytest.mark.parametrize("change", [other_power, other_shape, other_layer])
def test_a_network_that_differs_in_anything_else_is_traced_anew(traces: list[nn.Module], change: Callable[[Network], None]) -> None:
    network = Network()
    changed = copy.deepcopy(network)
    change(changed)
    for each in (network, changed):
        assert_computes_the_same(each)
    assert traces == [network, changed]


def test_other_inputs_are_traced_anew(traces: list[nn.Module]) -> None:
    network = nn.Flatten(0)
    for columns in (3, 4):
        tracing.trace(network, {"input": (2, columns)}, ("y",))
    tracing.trace(network, {"input": (2, 4)}, ("z",))
    assert len(traces) == 3
