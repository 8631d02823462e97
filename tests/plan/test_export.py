"""The estimate of an export's host memory, worked out by hand."""

from pathlib import Path

from tftq.plan.export import plan_export
from tftq.recipe.load import load_recipe

RECIPE = """\
name: planned
device: cpu
data: {kind: table, path: table.csv, time: time, target: y, calendar: [hour], season: 24, lookback: 48, horizon: 4}
model: {hidden: 32, knots: 16}
train: {batch_size: 64}
quant: {method: qat}
"""


def test_an_export_by_hand(tmp_path: Path) -> None:
    """Hidden 32, one LSTM layer: 2 · (8 · 32² + 8 · 32) = 16,896 numbers of the two LSTMs, stored as FP32 in an INT8 file too."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    loaded = load_recipe(recipe)
    small = plan_export(loaded, "int8_ptq", weights=20_000, knots=100)
    file, rows = 4 * 16_896 + (20_000 - 16_896), 32 * 48
    assert small.components["parameters"] == 4 * 20_000 and small.components["workspace"] == 2 * file
    assert small.components["activations"] == 2 * rows * 100
    pair = plan_export(loaded, "stream", weights=20_000, knots=100)  # beside the model in one piece
    assert pair.components == {**small.components, "workspace": 2 * small.components["workspace"]}
    some_kept = plan_export(loaded, "int8_ptq", weights=20_000, knots=100, kept=1_000)
    assert some_kept.components == {**small.components, "workspace": small.components["workspace"] + 2 * 3 * 1_000}
    half = plan_export(loaded, "fp16_int8", weights=20_000, knots=100)  # the LSTM in FP16, and what a CPU makes FP32 of it
    assert half.components["workspace"] == 2 * 16_896 + (20_000 - 16_896) + 4 * 20_000
    assert half.components["activations"] == 2 * (2 + 2 + 4) * rows * 100
    four_bits = plan_export(loaded, "int4_qat", weights=20_000, knots=100)  # held as INT8, and unpacked in three more tables
    assert four_bits.components == {**small.components, "workspace": small.components["workspace"] + 3 * 32 * 100}
    other = load_recipe(recipe, ["model.knots=null", "model.kind=mamba2", "model.state=8", "model.head_dim=16"])
    mamba2 = plan_export(other, "int8_ptq", weights=20_000, knots=0)  # 52 rows in one chunk, 4 heads, projected to 64 + 80 + 4
    assert mamba2.components["workspace"] == 2 * 20_000  # without an LSTM
    assert mamba2.components["activations"] == 32 * 52 * 4 * (8 * 148 + 4 * 4 * 52)
    large = plan_export(loaded, "fp32", weights=10_000_000, knots=10)  # building it takes more than running it
    assert large.components == {
        **{"parameters": 80_000_000, "workspace": 80_000_000},
        **dict.fromkeys(("activations", "gradients", "optimizer", "left_over"), 0),
    }
