"""Weights and tables in four bits: their levels by hand, and what they leave of a weight beside plain rounding."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.quant.small import calibrated, small_batch, small_table
from tftq.errors import QuantizationError, RecipeError
from tftq.model.grid import KnotGrid
from tftq.quant.integers import INT4, INT8, curve_levels, least_error_range
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedTable
from tftq.quant.prepare import prepared_copy
from tftq.quant.quantizers import CurveQuantizer, WeightQuantizer, learn_ranges

COUNTS = (32, 32, 5, 4)


def curves(seed: int = 0) -> torch.Tensor:
    """Smooth curves of two channels, of very different heights, about middles far from zero [rows, 2]."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for count in COUNTS:
        height, middle = torch.rand(2, generator=generator), 4 * torch.rand(2, generator=generator) - 2
        blocks.append(middle + height * torch.linspace(-2, 2, count)[:, None].tanh())
    return torch.cat(blocks)


def noise(weight: torch.Tensor, rounded: torch.Tensor) -> float:
    """In dB below the weight."""
    return 10 * float(torch.log10((weight - rounded).square().sum() / weight.square().sum()))


def test_the_range_of_four_bits_is_that_of_least_error() -> None:
    """Against an independent search; one large value among many small ones is cut off, a lone value is covered."""
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    weight[0, 0], weight[1, 1:] = 2 * weight[0].abs().max(), 0
    found = least_error_range(weight, 0, INT4).numpy()
    for row, end in zip(weight.double().numpy(), found, strict=True):
        largest = np.abs(row).max()

        def error(end: float, row: np.ndarray = row) -> float:
            return float(((np.clip(np.rint(7 * row / end), -7, 7) * end / 7 - row) ** 2).sum())

        least = min(error(share * largest) for share in np.arange(0.6, 1.001, 0.05))
        assert error(float(end)) == pytest.approx(least, rel=1e-4, abs=1e-12)
    assert found[0] < weight[0].abs().max() and found[1] == weight[1].abs().max()
    assert torch.equal(least_error_range(weight.T, 1, INT4), torch.from_numpy(found))


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (0, 15, range(16)),
        (-30, 30, range(-30, 31, 4)),
        (7, 7, range(16)),  # a constant: one of its levels is its value
    ],
)
def test_levels_by_hand(low: int, high: int, levels: range) -> None:
    base, step = curve_levels(torch.tensor(float(low)), torch.tensor(float(high)))
    assert [int(base + step * offset) for offset in range(-8, 8)] == list(levels)


def test_no_level_of_any_curve_is_too_large_for_a_byte() -> None:
    """Nor is what unpacking comes to on the way; every pair of ends, to a quarter of a step."""
    ends = torch.arange(-119, 119.1, 0.25)
    low, high = torch.triu_indices(len(ends), len(ends))
    base, step = curve_levels(ends[low], ends[high])
    assert int(step.min()) == 1 and int((-8 * step).min()) >= -128
    assert int(base.abs().max()) <= 127 and int((base - 8 * step).min()) >= -127 and int((base + 7 * step).max()) <= 127


def test_a_table_is_what_its_integers_say() -> None:
    quantizer, table = CurveQuantizer(COUNTS, 2), curves()
    quantizer.observe(table)
    rounded = quantizer.rounded(table)
    integers = quantizer.integers(table)
    assert integers.dtype == torch.int8 and torch.equal(rounded, integers.float() * quantizer.scale)
    offsets = quantizer.offsets(table).split(COUNTS)
    assert all(int(block.min()) >= -8 and int(block.max()) <= 7 for block in offsets)
    assert all(len(block.unique()) <= 16 for column in integers.T for block in column.split(COUNTS))
    bound = (0.5 * quantizer.step + 0.5)[quantizer.curve] * quantizer.scale  # half a step, and what rounding the middle may shift
    assert bool(((table - rounded).abs() <= 1.0001 * bound).all())


def test_curves_lose_far_less_than_by_rounding_each_channel_to_four_bits() -> None:
    table = curves()
    plain, byte, ours = WeightQuantizer(2, axis=1, kind=INT4), WeightQuantizer(2, axis=1), CurveQuantizer(COUNTS, 2)
    for quantizer in (plain, byte, ours):
        quantizer.observe(table)
    assert noise(table, byte.rounded(table)) < noise(table, ours.rounded(table)) < noise(table, plain.rounded(table)) - 10


def test_levels_follow_the_table_until_they_are_frozen() -> None:
    quantizer, table = CurveQuantizer(COUNTS, 2), curves()
    quantizer.observing = quantizer.enabled = True
    quantizer(table)
    before = quantizer.rounded(table)
    moved = table + 0.5
    quantizer(moved)
    assert noise(moved, quantizer.rounded(moved)) < -25
    quantizer.observing = False
    held = [buffer.clone() for buffer in (quantizer.scale, quantizer.base, quantizer.step)]
    quantizer(table)
    assert all(torch.equal(*pair) for pair in zip(held, (quantizer.scale, quantizer.base, quantizer.step), strict=True))
    quantizer.eval()(curves(1))
    assert torch.equal(quantizer.scale, held[0]) and not torch.equal(quantizer.rounded(table), before)


def test_gradients_pass_to_the_values_between_the_levels() -> None:
    quantizer, table = CurveQuantizer(COUNTS, 2), curves().requires_grad_()
    quantizer.observe(table)
    quantizer.enabled = True
    quantizer(table).sum().backward()
    assert table.grad is not None and float(table.grad.mean()) > 0.8 and set(table.grad.unique().round(decimals=5).tolist()) <= {0.0, 1.0}


def test_heads_stay_in_eight_bits_and_everything_else_is_in_four() -> None:
    model = calibrated(small_table(), weights="int4")
    kinds = {name: module.weight_quantizer.kind for name, module in model.named_modules() if isinstance(module, FakeQuantizedLinear)}
    assert kinds.pop("heads.linear") == INT8 and set(kinds.values()) == {INT4} and len(kinds) >= 18
    tables = [module for module in model.modules() if isinstance(module, FakeQuantizedTable)]
    assert len(tables) == 3 and all(isinstance(table.weight_quantizer, CurveQuantizer) for table in tables)
    kept = prepared_copy(small_table(), lstm="fp32", weights="int4", keep_float=["heads"])
    assert type(kept.heads.linear) is nn.Linear


def test_ranges_are_not_learned_where_only_tables_of_four_bits_are_quantized() -> None:
    names = [name for name, layer in small_table().named_modules() if type(layer) is nn.Linear]
    learn_ranges(calibrated(small_table(), keep_float=names))  # eight bits: a range for each channel of a table
    with pytest.raises(
        RecipeError, match=r"^quant\.qat\.ranges learn: .*quant\.keep_float.*quant\.weights int4.*; set quant\.qat\.ranges to obs"
    ):
        learn_ranges(calibrated(small_table(), keep_float=names, weights="int4", lstm="fp32"))


def test_a_table_without_a_range_is_refused_by_name() -> None:
    model = calibrated(small_table(), weights="int4")
    table = model.history_selection.curves
    assert isinstance(table, FakeQuantizedTable) and isinstance(table.grid, KnotGrid)
    with torch.no_grad():
        table.values[3, 2] = torch.nan
    table.weight_quantizer.observe(table.values)
    with pytest.raises(QuantizationError, match=r"history_selection\.curves\.weight_quantizer.*NaN or Inf"):
        table.weight_quantizer.check("history_selection.curves.weight_quantizer")


@pytest.mark.parametrize("learn", [False, True], ids=["observed", "learned"])
def test_training_moves_what_four_bits_hold(learn: bool) -> None:
    """Tables keep no share of their ranges to learn: these follow their values; the linear layers do."""
    model = calibrated(small_table(dropout=0.0), weights="int4").train()
    if learn:
        learn_ranges(model)
    for module in model.modules():
        if hasattr(module, "observing"):
            module.observing = module.enabled = True
    batch = small_batch(model.inputs, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = (model(*batch.inputs) - batch.target[..., None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    stretched = {name.rpartition(".")[0] for name, _ in model.named_parameters() if name.endswith(".stretch")}
    assert ("enrichment.gate.weight_quantizer" in stretched) == learn and "history_selection.curves.weight_quantizer" not in stretched
