"""The scan against the recurrence that it computes, the block against one written out step by step, and no look ahead."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.model.recurrence import operands, recurrence
from tests.model.small import example, small_data, small_inputs, small_mamba2
from tftq.memory.counter import ByteCounter
from tftq.model.mamba2 import Mamba2, Mamba2Architecture, Mamba2Block, chunked_scan, decays
from tftq.model.size import parameter_count
from tftq.recipe.load import load_recipe
from tftq.spec.inputs import Column, Inputs
from tftq.train.build import architecture_of

RECIPES = Path(__file__).parents[2] / "recipes"


def farthest(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@settings(max_examples=40, deadline=None)
@given(time=st.integers(1, 40), chunk=st.integers(1, 48), rate=st.sampled_from([0.0, 0.1, 2.0, 40.0]), seed=st.integers(0, 99))
def test_the_chunked_scan_is_the_recurrence(time: int, chunk: int, rate: float, seed: int) -> None:
    """Lengths that are no multiple of the chunk, and shorter than it; what it computes and its gradients, all in float32."""
    ours = [part.requires_grad_() for part in operands(time, rate, seed)]
    theirs = [part.detach().clone().requires_grad_() for part in ours]
    found, expected = chunked_scan(*ours, chunk=chunk), recurrence(*theirs)
    assert found.shape == expected.shape and farthest(found, expected) < 1e-5
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(seed))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None and other.grad is not None
        scale = other.grad.abs().max().clamp(min=1e-3)
        assert float((mine.grad - other.grad).abs().max() / scale) < 1e-5


def test_a_short_sum_behind_a_long_one_keeps_its_digits() -> None:
    """After decays of 1,000 a row, one of 0.001: a difference of sums from the first row on would be wrong by 6 %."""
    left = decays(torch.tensor([-1000.0] * 999 + [-0.001]))
    assert left[-1, -2].item() == pytest.approx(0.9990005, abs=1e-7)
    assert left[-1, -1] == 1 and left[5, 4] == 0


def test_the_block_is_the_published_one() -> None:
    """Written out with torch's own convolution and the recurrence, from the same parameters."""
    torch.manual_seed(0)
    block = Mamba2Block(Mamba2Architecture(12, 2, 6, 4, 2, 3, 5, 0.0, (0.5,)))
    x = torch.randn(2, 13, 12)
    normal = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * block.norm.weight
    projected = normal @ block.in_projection.weight.T  # [batch, time, 24 + 24 + 6 + 6 + 6]
    gate, mixed, step = projected[..., :24], projected[..., 24:60], projected[..., 60:]
    kernel = block.convolution.weight.T[:, None]  # [channels, 1, width], as torch has it
    convolved = F.silu(F.conv1d(mixed.mT, kernel, block.convolution.bias, padding=2, groups=36)[..., :13].mT)
    values = convolved[..., :24].unflatten(-1, (6, 4))
    step = (1 + (step + block.step_bias).exp()).log()
    y = recurrence(values * step[..., None], -block.log_rate.exp() * step, convolved[..., 24:30], convolved[..., 30:])
    y = (y + block.skip[:, None] * values).flatten(-2) * gate * gate.sigmoid()
    y = y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * block.gated_norm.weight
    torch.testing.assert_close(block(x), x + y @ block.out_projection.weight.T, rtol=1e-5, atol=1e-5)


def test_it_begins_in_the_published_ranges() -> None:
    block = Mamba2Block(Mamba2Architecture(64, 4, 8, 2, 2, 4, 8, 0.0, (0.5,)))
    step, rate = F.softplus(block.step_bias), block.log_rate.exp()
    assert 9e-4 < step.min() < 1e-2 and 3e-2 < step.max() < 0.101
    assert 1 <= rate.min() < 4 and 13 < rate.max() <= 16
    assert block.skip.eq(1).all()
    assert block.out_projection.weight.abs().max() <= 128**-0.5 / 2  # over the root of four blocks


@pytest.mark.parametrize("row", range(13))
def test_a_row_moves_nothing_before_it(row: int) -> None:
    torch.manual_seed(0)
    block = Mamba2Block(Mamba2Architecture(12, 2, 6, 4, 2, 3, 5, 0.0, (0.5,)))
    x = torch.randn(1, 13, 12)
    changed = x.clone()
    changed[:, row] += 1
    moved = (block(changed) != block(x)).flatten(2).any(-1)[0]
    assert not moved[:row].any() and moved[row:].all()


@pytest.mark.parametrize("step", range(4))
def test_a_forecast_sees_the_known_future_up_to_its_own_step(step: int) -> None:
    model = small_mamba2().eval()
    history, future, static = example(model.inputs)
    changed = future.clone()
    changed[:, step, 0] = -changed[:, step, 0]
    moved = (model(history, changed, static) != model(history, future, static)).any(-1).all(0)  # [horizon]
    assert moved.tolist() == [number >= step for number in range(4)]


def test_the_chunk_changes_nothing() -> None:
    tensors = example(small_inputs())
    with torch.no_grad():
        one, *others = [small_mamba2(chunk=chunk).eval()(*tensors) for chunk in (16, 6, 1, 1000)]
    for other in others:
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("static", [True, False])
def test_every_parameter_receives_a_gradient(static: bool) -> None:
    model = small_mamba2(static=static)
    forecast = model(*example(model.inputs))
    assert forecast.shape == (3, 4, 3) and bool((forecast.diff(dim=-1) >= 0).all())
    forecast.sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()] == []


def test_static_columns_and_categories_count() -> None:
    model = small_mamba2().eval()
    history, future, static = example(model.inputs)
    before = model(history, future, static)
    for place in range(2):
        changed = static.clone()
        changed[:, place] = 1 - changed[:, place].clamp(0, 1)
        assert bool((model(history, future, changed) != before).any((1, 2)).all())
    state = model.inputs.history.index(Column("state", "observed", categories=3))
    history[..., state] = (history[..., state] + 1) % 3
    assert bool((model(history, future, static) != before).any((1, 2)).all())


@pytest.mark.parametrize("static", [True, False])
def test_parameters_in_closed_form(static: bool) -> None:
    model = small_mamba2(static=static, hidden=20, layers=3)
    assert parameter_count(model.inputs, model.architecture) == sum(parameter.numel() for parameter in model.parameters())


def test_the_reference_has_the_first_attempts_size() -> None:
    """FP32 parameters, gradients and Adam's two moments together: 164 MB."""
    columns = (*(Column(f"o{i}", "observed") for i in range(214)), *(Column(f"k{i}", "known") for i in range(11)))
    recipe = load_recipe(RECIPES / "mamba2_ref.yaml")
    count = parameter_count(Inputs(columns, recipe.data.lookback, recipe.data.horizon), architecture_of(recipe.model))
    assert round(4 * 4 * count / 1e6) == 164


def test_only_what_enters_a_block_is_kept() -> None:
    """A block more keeps one tensor [batch, time, hidden] more, though it computes dozens."""
    kept = []
    for layers in (2, 3):
        inputs, scaling, target = small_data()
        model = Mamba2(inputs, scaling, target, Mamba2Architecture(16, layers, 8, 8, 2, 4, 6, 0.0, (0.1, 0.5, 0.9)))
        with ByteCounter() as counter:
            forecast = model(*example(model.inputs, batch=8))
            kept.append(counter.live_bytes)
        assert forecast.requires_grad
    assert kept[1] - kept[0] == 8 * 16 * 16 * 4
