"""The one-piece network cut in two where a bar's part in it is done: what each bar comes to, and the forecast from the window of them."""

import hashlib
from collections.abc import Mapping

from torch import Tensor, nn

from tftq.export.deploy import deploy
from tftq.export.graph import EXAMPLE_BATCH, describe_model, trace
from tftq.export.stream import FORECAST_FILE, STEP_FILE
from tftq.model.tft import TemporalFusionTransformer
from tftq.recipe.schema import Format


class StepNetwork(nn.Module):
    """A raw bar's variable selection.

    Args:
        network: of `deploy`.
    """

    def __init__(self, network: TemporalFusionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, history: Tensor, static: Tensor | None = None) -> Tensor:
        """Args: history [batch, history columns]; static [batch, static columns]. Returns: [batch, hidden]."""
        return self.network.select_past(history[:, None], self.network.static_context(static))[:, 0]


class ForecastNetwork(nn.Module):
    """The forecast from a window of selected bars.

    Args:
        network: of `deploy`.
    """

    def __init__(self, network: TemporalFusionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, selected: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        """Args: selected [batch, lookback, hidden]; the others as the one-piece network takes them. Returns: as that."""
        return self.network.forecast(selected, future, self.network.static_context(static))


def build_pair(model: TemporalFusionTransformer, weights: Format, metadata: Mapping[str, object]) -> dict[str, bytes]:
    """The streaming pair of a model: what `step.onnx` and `forecast.onnx` hold.

    Args:
        model: in the table form; where it is prepared and calibrated, the products are integers.
        weights: the format of the one-piece model that has the same weights.
        metadata: what to note in both files beside the inputs, as JSON.

    Returns:
        Each file's name and its serialized model; the same for the same model.
    """
    hidden = model.architecture.hidden
    shapes = model.inputs.shapes(EXAMPLE_BATCH)
    batch, lookback, columns = shapes.pop("history")
    static = {"static": shapes["static"]} if "static" in shapes else {}
    parts: dict[str, tuple[nn.Module, dict[str, tuple[int, ...]], str]] = {
        STEP_FILE: (StepNetwork(deploy(model)), {"history": (batch, columns), **static}, "selected"),
        FORECAST_FILE: (ForecastNetwork(deploy(model)), {"selected": (batch, lookback, hidden), **shapes}, "forecast"),
    }
    common = {**describe_model(model), **metadata, "format": "stream", "weights": weights, "hidden": hidden, "pair": _identity(model)}
    partner = {STEP_FILE: FORECAST_FILE, FORECAST_FILE: STEP_FILE}
    return {
        name: trace(network.eval(), inputs, output, {**common, "part": name.removesuffix(".onnx"), "partner": partner[name]})
        for name, (network, inputs, output) in parts.items()
    }


def _identity(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) of all weights, ranges and scalings: the halves of two pairs must not be mixed."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
