"""What each layer lost by being quantized, and which ones stayed in floating point for it."""

from tftq.quant.sensitivity import Sensitivity
from tftq.report.facts import Facts
from tftq.report.html import Html, section, table, tag
from tftq.report.text import budget_line, decibels

MEASURED = (
    "Each layer quantized alone, everything else in floating point; the losses are of the same windows, of the training part, so that the "
    "validation windows have no say in what is kept. Signal to noise is that of the float model's weights, and of what enters the product, "
    "against the same rounded; – where nothing is rounded."
)


def sensitivity(facts: Facts) -> Html:
    """The layers, the one with the largest effect first, and what the loss budget made of it."""
    found = Sensitivity.from_dict(facts.summary["quant"])
    rows: list[list[object]] = [
        [
            layer.layer,
            f"{layer.weights:,}",
            decibels(layer.weight_snr_db),
            decibels(layer.input_snr_db),
            f"{layer.loss:.5f}",
            f"{layer.effect:+.3%}",
            "FP32" if layer.layer in found.kept_float else "",
        ]
        for layer in found.layers
    ]
    above = found.above_float(found.quantized_loss)
    header = ["", "weights", "weight SNR, dB", "input SNR, dB", "quantile loss", "above FP32", "kept in"]
    measured = [table(header, rows), tag("p", MEASURED, class_="soft")] if rows else []
    line = (
        f"Quantile loss on {found.windows} training windows: {found.float_loss:.5f} in FP32, {found.quantized_loss:.5f} with everything "
        f"quantized ({above:+.3%})."
    )
    budget = [] if found.budget is None else [tag("p", "The ", budget_line(found), ".")]
    return section("Sensitivity", tag("p", line), *budget, *measured)
