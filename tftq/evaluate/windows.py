"""Measure a model on windows it does not learn from, without changing its state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from tftq.data.windows import Windows, blocks
from tftq.errors import NonFiniteError
from tftq.evaluate.diagnose import find_non_finite
from tftq.evaluate.metrics import ForecastMetrics, Validation
from tftq.evaluate.precision import Precision
from tftq.model.batch import WindowSource, gather
from tftq.model.forecaster import Forecaster


def validate(
    model: Forecaster,
    windows: WindowSource,
    batch_size: int,
    precision: Precision,
    *,
    on_batch: Callable[[int], None] = lambda windows: None,
) -> Validation:
    """Measure a model's forecasts, in eval mode and without autograd.

    Args:
        model: the forecaster.
        windows: to forecast, in their order.
        batch_size: windows per forward pass; the last one takes the rest.
        precision: the format and device to compute in.
        on_batch: called with the number of windows of each batch once it is done.

    Returns:
        The metrics; apart from rounding they do not depend on the batch size.

    Raises:
        NonFiniteError: a forecast is not finite; names the windows and the layer that it comes from.
    """
    with evaluating(model):
        return measure_forecasts(model, windows, batch_size, precision, on_batch=on_batch)


def measure_forecasts(
    model: Forecaster,
    windows: WindowSource,
    batch_size: int,
    precision: Precision,
    *,
    on_batch: Callable[[int], None] = lambda windows: None,
) -> Validation:
    """Measure a model's forecasts as `validate` does, every module in its current mode."""
    metrics = metrics_for(model)
    with torch.no_grad(), precision.autocast():  # no inference mode: tensors cached by a module must stay trainable
        for indices in torch.arange(len(windows)).split(batch_size):
            batch = gather(windows, indices, precision.device)
            if not metrics.add(as_array(model(*batch.inputs)), as_array(batch.target)):
                reason = find_non_finite(model, batch) or "every layer's output is finite when the batch is run again"
                raise NonFiniteError(f"the forecast or target of windows {int(indices[0])} to {int(indices[-1])} is not finite: {reason}")
            on_batch(len(indices))
    return metrics.result()


def metrics_for(model: Forecaster) -> ForecastMetrics:
    """Create empty metrics with the quantiles and the scale of a model's forecasts."""
    return ForecastMetrics(model.quantiles, model.target_scale.tolist())


def naive_q_risk(windows: Windows, batch_size: int = 1024) -> float:
    """Compute the P50 risk of the windows' baseline, `Σ|target - naive| / Σ|target|`, as in `Validation.q_risk` where all targets are 0."""
    error = size = 0.0
    cells = 0
    for indices in blocks(np.arange(len(windows)), batch_size):
        target = windows.targets(indices).astype(np.float64)
        error += float(np.abs(target - windows.naive(indices)).sum())
        size += float(np.abs(target).sum())
        cells += target.size
    return error / (size or cells)


def as_array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor of any device and floating dtype to a float32 array."""
    return tensor.detach().float().cpu().numpy()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and restore every module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
