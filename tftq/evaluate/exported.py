"""Measure the forecasts of an exported model, computed by the runtime that will serve it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tftq.data.windows import BatchArrays, Windows, blocks
from tftq.errors import GateError
from tftq.evaluate.metrics import ForecastMetrics, Validation
from tftq.serve.session import feeds, open_session


def evaluate(path: Path, windows: Windows, metrics: ForecastMetrics, *, batch_size: int) -> Validation:
    """Forecast windows with an ONNX model and measure the forecasts.

    Args:
        path: the model.
        windows: to forecast.
        metrics: empty, with the model's quantiles and the target's scale.
        batch_size: windows per run.

    Returns:
        The metrics, as training's own validation computes them.

    Raises:
        GateError: a forecast is not finite.
    """
    session = open_session(path)

    def forecast(batch: BatchArrays) -> np.ndarray:
        return np.asarray(session.run(["forecast"], feeds(session, batch.inputs))[0])

    return evaluate_forecasts(path.name, forecast, windows, metrics, batch_size=batch_size)


def evaluate_forecasts(
    name: str, forecast: Callable[[BatchArrays], np.ndarray], windows: Windows, metrics: ForecastMetrics, *, batch_size: int
) -> Validation:
    """Forecast windows with any function and measure the forecasts.

    Args:
        name: of the forecaster.
        forecast: from a batch to its forecasts, float32 [batch, horizon, quantiles].
        windows: to forecast.
        metrics: empty, with the model's quantiles and the target's scale.
        batch_size: windows per call.

    Returns:
        The metrics, as training's own validation computes them.

    Raises:
        GateError: a forecast is not finite.
    """
    for indices in blocks(np.arange(len(windows)), batch_size):
        batch = windows.batch(indices)
        if not metrics.add(forecast(batch), batch.target):
            raise GateError(f"{name}: a forecast of windows {int(indices[0])} to {int(indices[-1])} is not finite")
    return metrics.result()
