"""The networks that memory is compared with: the paper's variable selection as textbooks write it, and neuralforecast's TFT."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.model import curves, tft, variable_selection
from tftq.model.layers import GatedResidualNetwork
from tftq.spec.inputs import Inputs

HIDDEN, HEADS, LAYERS = 256, 8, 2
QUANTILES = (0.1, 0.5, 0.9)


class TextbookSelection(nn.Module):
    """A GRN for each variable in a loop, their outputs stacked, and a GRN over all embeddings side by side."""

    def __init__(self, variables: int, *, context: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Linear(1, HIDDEN) for _ in range(variables))
        self.networks = nn.ModuleList(GatedResidualNetwork(HIDDEN, HIDDEN, HIDDEN, dropout=0.1, folded=False) for _ in range(variables))
        self.joint = GatedResidualNetwork(variables * HIDDEN, HIDDEN, variables, context=context, dropout=0.1, folded=False)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Args: x [..., variables]. Returns: [..., hidden]."""
        embedded = [embedding(x[..., i, None]) for i, embedding in enumerate(self.embeddings)]
        weights = self.joint(torch.cat(embedded, dim=-1), context).softmax(-1)  # [..., variables]
        values = torch.stack(
            [network(one) for network, one in zip(self.networks, embedded, strict=True)],
            dim=-2,
        )  # [..., variables, hidden]
        return (values * weights.unsqueeze(-1)).sum(-2)


def textbook(inputs: Inputs, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The whole network with that selection, nothing computed again, and what computes a forecast from random windows."""
    for module in (curves, tft, variable_selection):
        module.recompute = lambda function, *arguments: function(*arguments)  # type: ignore[attr-defined]
    scaling = Scaling(_unit(len(inputs.history)), _unit(len(inputs.static)))
    target = TargetScaling(np.zeros(inputs.horizon, np.float32), np.ones(inputs.horizon, np.float32))
    sizes = tft.Architecture(HIDDEN, HEADS, LAYERS, 0.1, QUANTILES, "paper", 2)
    model = tft.TemporalFusionTransformer(inputs, scaling, target, sizes)
    model.static_selection = TextbookSelection(len(inputs.static), context=0)  # type: ignore[assignment]
    model.history_selection = TextbookSelection(len(inputs.history), context=HIDDEN)  # type: ignore[assignment]
    model.future_selection = TextbookSelection(len(inputs.future), context=HIDDEN)  # type: ignore[assignment]
    return model, lambda: model(*(torch.randn(shape) for shape in inputs.shapes(batch).values()))


def neuralforecast(inputs: Inputs, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """neuralforecast's TFT at the same sizes, and what computes a forecast."""
    model = neuralforecast_model(inputs)
    shapes = neuralforecast_shapes(inputs, batch)
    return model, lambda: model({name: torch.randn(shape) for name, shape in shapes.items()})  # [batch, horizon, quantiles]


def neuralforecast_model(inputs: Inputs) -> nn.Module:
    """neuralforecast's TFT at the same sizes, its target one of the observed columns."""
    from neuralforecast.losses.pytorch import MQLoss
    from neuralforecast.models import TFT

    static, observed, known = _columns(inputs)
    return TFT(
        *(inputs.horizon, inputs.lookback),
        **{"hist_exog_list": observed, "futr_exog_list": known, "stat_exog_list": static},
        **{"hidden_size": HIDDEN, "n_head": HEADS, "n_rnn_layers": LAYERS, "loss": MQLoss(quantiles=list(QUANTILES))},
        **{"start_padding_enabled": False, "logger": False, "enable_checkpointing": False},
    )


def neuralforecast_shapes(inputs: Inputs, batch: int) -> dict[str, tuple[int, ...]]:
    """What it takes, by its own names."""
    static, observed, known = _columns(inputs)
    return {
        "insample_y": (batch, inputs.lookback, 1),
        "hist_exog": (batch, inputs.lookback, len(observed)),
        "futr_exog": (batch, inputs.lookback + inputs.horizon, len(known)),
        "stat_exog": (batch, len(static)),
    }


def _columns(inputs: Inputs) -> tuple[list[str], list[str], list[str]]:
    """Names of static, observed and known columns; the target is an observed column too, and has no name there."""
    known = [column.name for column in inputs.future]
    observed = [column.name for column in inputs.history if column.name not in known]
    return [column.name for column in inputs.static], observed[1:], known


def _unit(variables: int) -> ColumnScaling:
    zeros, ones = np.zeros(variables, np.float32), np.ones(variables, np.float32)
    return ColumnScaling(zeros, ones, np.zeros(variables, bool), -3 * ones, 3 * ones)
