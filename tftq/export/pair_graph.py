"""Cut the one-piece network in two: a step per bar, and the forecast from the window of the bars' results.

The encoder is on the bar's side. Each bar is in as many windows as one has bars, and the encoder begins anew in each; that is one step in
every window at once, products of matrices, rather than all steps in the one window that is full, products with a vector one after the
other. An LSTM that rounds its input over the range of a whole window has no step by itself: it stays on the side of the forecast.
"""

import hashlib

import torch
from torch import Tensor, nn

from tftq.export.deploy import deploy
from tftq.export.graph import EXAMPLE_BATCH, build_graph, describe
from tftq.model.tft import CONTEXTS, TemporalFusionTransformer
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.spec.formats import FORECAST_FILE, STEP_FILE, Format
from tftq.spec.metadata import HalfMetadata, Origin

Shapes = dict[str, tuple[int, ...]]


class StepNetwork(nn.Module):
    """A raw bar's variable selection, and its encoder step in every window that contains it.

    Args:
        network: of `deploy`.
    """

    def __init__(self, network: TemporalFusionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, history: Tensor, states: Tensor | None = None, static: Tensor | None = None) -> tuple[Tensor, ...]:
        """Compute the outputs of step.onnx, see `build_pair`."""
        context = self.network.static_context(static)
        selected = self.network.select_past(history[:, None], context)  # [batch, 1, hidden]
        stepped = () if states is None else (self._step(selected, states, context),)
        said = (torch.stack([context[use] for use in CONTEXTS], dim=1),) if context else ()  # [batch, contexts, hidden]
        return selected[:, 0], *stepped, *said

    def _step(self, selected: Tensor, states: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Compute the states of all windows after a bar [batch, states, lookback, hidden], including the window it begins."""
        begun = self.network.initial_state(context)
        if begun is None:
            states = nn.functional.pad(states, (0, 0, 0, 1))
        else:
            states = torch.cat([states, torch.cat(begun).transpose(0, 1)[:, :, None]], dim=2)
        lookback = states.shape[2]
        hidden, cell = states.transpose(0, 1).flatten(1, 2).chunk(2)  # [layers, batch * lookback, hidden]
        rows = selected.expand(-1, lookback, -1).flatten(0, 1)[:, None]  # [batch * lookback, 1, hidden]
        _, after = self.network.encoder(rows, (hidden.contiguous(), cell.contiguous()))
        return torch.cat(after).unflatten(1, (-1, lookback)).transpose(0, 1)


class ForecastNetwork(nn.Module):
    """The forecast from a window of selected bars.

    Args:
        network: of `deploy`.
    """

    def __init__(self, network: TemporalFusionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, selected: Tensor, future: Tensor, encoded: Tensor | None = None, state: Tensor | None = None, context: Tensor | None = None
    ) -> Tensor:
        """Compute the output of forecast.onnx, see `build_pair`."""
        said = {} if context is None else dict(zip(CONTEXTS, context.unbind(1), strict=True))
        assert (encoded is None) == (state is None)
        if encoded is None or state is None:
            return self.network.forecast(selected, future, said)
        hidden, cell = state.transpose(0, 1).chunk(2)  # [layers, batch, hidden]
        return self.network.decode(selected, encoded, (hidden.contiguous(), cell.contiguous()), future, said)


def build_pair(model: TemporalFusionTransformer, weights: Format, target: str, origin: Origin | None = None) -> dict[str, bytes]:
    """Build the streaming pair of a model, `step.onnx` and `forecast.onnx`.

    The step takes a raw bar `history` and gives `selected`, what its variable selection is. Of the windows that began before it, the
    oldest first, it takes the encoder's `states`, hidden and cell of each layer, and gives their `new_states` and those of the window that
    begins. Of the raw `static` columns it makes the `context` for the forecast. That takes the window of `selected` bars, what the encoder
    made of each (`encoded`, the hidden state of the last layer), its `state` in the end, the raw `future`, and the `context`.

    Args:
        model: in the table form; where it is prepared and calibrated, the products are integers.
        weights: the format of the one-piece model that has the same weights.
        target, origin: see `tftq.export.graph.build_forecaster`.

    Returns:
        Each file's name and its serialized model; the same for the same model.
    """
    step, forecast = _inputs(model)
    steps = ("selected", *(["new_states"] if "states" in step else []), *(["context"] if "static" in step else []))
    parts: dict[str, tuple[nn.Module, Shapes, tuple[str, ...]]] = {
        STEP_FILE: (StepNetwork(deploy(model)), step, steps),
        FORECAST_FILE: (ForecastNetwork(deploy(model)), forecast, ("forecast",)),
    }
    partner = {STEP_FILE: FORECAST_FILE, FORECAST_FILE: STEP_FILE}
    whole, identity = describe(model, weights, target, origin), _identity(model)
    built = {}
    for name, (network, inputs, outputs) in parts.items():
        metadata = HalfMetadata.of(
            whole,
            weights=weights,
            part=name.removesuffix(".onnx"),
            partner=partner[name],
            pair=identity,
            hidden=model.architecture.hidden,
            states=step["states"][1] if "states" in step else 0,
        )
        built[name] = build_graph(network.eval(), inputs, outputs, metadata)
    return built


def _inputs(model: TemporalFusionTransformer) -> tuple[Shapes, Shapes]:
    """Return the inputs of a half, by name and in order."""
    shapes = model.inputs.shapes(EXAMPLE_BATCH)
    batch, lookback, columns = shapes["history"]
    hidden = model.architecture.hidden
    step: Shapes = {"history": (batch, columns)}
    forecast: Shapes = {"selected": (batch, lookback, hidden), "future": shapes["future"]}
    if not isinstance(model.encoder, DynamicLstm):
        states = 2 * model.encoder.num_layers
        step["states"] = (batch, states, lookback - 1, hidden)
        forecast |= {"encoded": (batch, lookback, hidden), "state": (batch, states, hidden)}
    if "static" in shapes:
        step["static"] = shapes["static"]
        forecast["context"] = (batch, len(CONTEXTS), hidden)
    return step, forecast


def _identity(model: nn.Module) -> str:
    """Hash (SHA-256, hexadecimal) all weights, ranges and scalings: the halves of two pairs must not be mixed."""
    digest = hashlib.sha256(b"cut 2")  # halves of a model cut by different versions are no partners
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
