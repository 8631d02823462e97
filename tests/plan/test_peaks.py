"""The planned peak is the peak of the real step, to the byte."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from tftq.memory.counter import ByteCounter
from tftq.memory.lstm import lstm_workspace_bytes
from tftq.plan.peaks import plan_peaks


class Network(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(20, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=0.1)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.lstm(self.embedding(x).relu())[0])
        return result


def training(hidden: int, layers: int, batch: int, steps: int) -> Callable[[], Callable[[], None]]:
    def make_step() -> Callable[[], None]:
        model = Network(hidden, layers)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            model(torch.randn(batch, steps, 20)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make_step


@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last recurrent layer")
@pytest.mark.parametrize("sizes", [(48, 2, 9, 13), (63, 1, 5, 20), (64, 2, 1, 60), (256, 1, 4, 10)])
def test_planned_equals_real(sizes: tuple[int, int, int, int]) -> None:
    with ByteCounter() as counter:
        step = training(*sizes)()
        built = counter.live_bytes
        step()
        step()
    planned = plan_peaks(lambda: 2 * [training(*sizes)()])[1]
    assert planned.peak_bytes == counter.peak_bytes
    hidden, layers, batch, steps = sizes
    assert planned.components["parameters"] == built
    assert planned.components["optimizer"] == 2 * built + 4 * (4 * layers + 4)  # a step counter for each parameter
    assert planned.components["workspace"] == layers * lstm_workspace_bytes(steps, batch, hidden)
    assert sum(planned.components.values()) == planned.peak_bytes


def test_gradients_are_told_apart_where_the_peak_has_them() -> None:
    def make_step() -> Callable[[], None]:
        model = nn.Linear(100, 100, bias=False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=False)

        def step() -> None:
            model(torch.randn(1, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    components = plan_peaks(lambda: 2 * [make_step()])[1].components
    assert (components["parameters"], components["gradients"], components["workspace"]) == (40_000, 40_000, 0)
    assert components["optimizer"] == 80_004
    assert components["activations"] >= 40_000  # the temporaries of an optimizer that is not fused are as large as the parameter


def test_hooks_are_taken_away_when_a_step_fails() -> None:
    def make_step() -> Callable[[], None]:
        def step() -> None:
            raise ValueError("no step")

        return step

    with pytest.raises(ValueError, match="no step"):
        plan_peaks(lambda: [make_step()])
    assert not _global_optimizer_post_hooks
