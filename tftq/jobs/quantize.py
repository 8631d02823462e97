"""Calibrate a float model; layers that the recipe names or its loss budget needs stay in floating point."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tftq.console import Console
from tftq.data.windows import Windows
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import evaluating, measure_forecasts
from tftq.jobs.folder import RunFolder
from tftq.model.batch import Batch, gather
from tftq.model.forecaster import Forecaster
from tftq.quant.calibration import calibrate
from tftq.quant.layers import quantized_layers
from tftq.quant.prepare import prepared_copy
from tftq.quant.sensitivity import Sensitivity, measure_sensitivity
from tftq.recipe.schema import QuantRecipe
from tftq.report.console import budget_line, sensitivity_table

MEASURED = "sensitivity.json"  # in the run folder, where a resumed run reads earlier measurements


@dataclass(frozen=True)
class Quantizing:
    """Makes calibrated copies of a float model, from training windows alone: validation windows must only judge the choice.

    Args:
        recipe: of the quantization.
        model: the float model; a Mamba-2, or a TFT in the table form.
        train: the training windows.
        device: where to compute.
        batch_size: windows to a forward pass.
    """

    recipe: QuantRecipe
    model: Forecaster
    train: Windows
    device: torch.device
    batch_size: int

    def quantize(self, folder: RunFolder, console: Console) -> tuple[Forecaster, Sensitivity | None]:
        """Make a calibrated copy of the model, and measure its layers where the recipe asks for that.

        Args:
            folder: where measurements are kept, and read by a run that is resumed.
            console: where to print.

        Raises:
            QuantizationError: a range is invalid, or the loss budget cannot be kept.
        """
        recipe = self.recipe
        prepared = self._calibrated(recipe.keep_float)
        if not recipe.sensitivity and recipe.loss_budget is None:
            return prepared, None
        found = self._recall(folder) or self._measure(prepared, console)
        folder.write_json(MEASURED, found.as_dict())
        if found.layers:
            console.print_table(sensitivity_table(found))
        if found.budget is not None:
            console.print_line(budget_line(found))
        return self._calibrated([*recipe.keep_float, *found.kept_float]) if found.kept_float else prepared, found

    def _calibrated(self, keep_float: Sequence[str]) -> Forecaster:
        recipe = self.recipe
        prepared = prepared_copy(self.model, lstm=recipe.lstm, weights=recipe.weights, keep_float=keep_float).to(self.device)
        calibrate(prepared, self._calibration_batches(), recipe.calibration, percentile=recipe.percentile)
        return prepared

    def _measure(self, prepared: Forecaster, console: Console) -> Sensitivity:
        recipe, windows = self.recipe, self.train.some(self._other_windows().numpy())
        layers = len(quantized_layers(prepared))
        console.print_line(f"sensitivity: {layers} layers on {len(windows)} training windows")

        def loss() -> float:
            return measure_forecasts(prepared, windows, self.batch_size, Precision("fp32", self.device)).loss

        with evaluating(prepared):
            return measure_sensitivity(
                prepared,
                self._calibration_batches(),
                loss,
                windows=len(windows),
                every_layer=recipe.sensitivity,
                budget=recipe.loss_budget,
            )

    def _recall(self, folder: RunFolder) -> Sensitivity | None:
        """Read the measurements from before the run was interrupted: QAT must resume with the same layers."""
        path = folder.path / MEASURED
        return Sensitivity.from_dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def _calibration_batches(self) -> Iterator[Batch]:
        """Yield training windows evenly spaced over the training part, in batches as large as training could forward."""
        for indices in self._calibration_windows().split(self.batch_size):
            yield gather(self.train, indices, self.device)

    def _calibration_windows(self) -> Tensor:
        return _spread(torch.arange(len(self.train)), self.recipe.calibration_windows)

    def _other_windows(self) -> Tensor:
        """Select the same number of windows, evenly spaced, disjoint from calibration where possible."""
        every = torch.arange(len(self.train))
        others = every[~torch.isin(every, self._calibration_windows())]
        return _spread(others if len(others) >= self.recipe.calibration_windows else every, self.recipe.calibration_windows)


def _spread(indices: Tensor, count: int) -> Tensor:
    """Select so many of the indices, evenly spaced; all of them where there are fewer."""
    return indices[torch.linspace(0, len(indices) - 1, min(count, len(indices))).round().long()]
