"""The Temporal Fusion Transformer (Lim et al. 2019, arXiv 1912.09363, figure 2)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tftq.data.scaling import Scaling, TargetScaling
from tftq.model.attention import InterpretableAttention
from tftq.model.curves import FoldedCurves, KnotCurves
from tftq.model.forecaster import Forecaster
from tftq.model.grid import KnotGrid
from tftq.model.layers import GatedResidualNetwork, GatedSkip, QuantileHeads
from tftq.model.recompute import recompute
from tftq.model.variable_selection import PaperVariableSelection, VariableSelection
from tftq.spec.inputs import Column, Inputs, real_first

Form = Literal["knots", "folded", "paper"]
InputName = Literal["static", "history", "future"]
CONTEXTS = ("selection", "enrichment", "lstm_hidden", "lstm_cell")  # the parts that static columns condition


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model, and the form its variable selection is trained in."""

    hidden: int
    heads: int
    lstm_layers: int
    dropout: float
    quantiles: tuple[float, ...]
    form: Form
    knots: int
    shared_gates: bool = False


class TemporalFusionTransformer(Forecaster):
    """The network as published, its variable selection in any form.

    Args:
        inputs: the columns and the window's shape.
        scaling: of the input columns, fitted on the training part.
        target_scaling: of the target, one scale for each step.
        architecture: sizes and form.
    """

    kind = "tft"

    def __init__(self, inputs: Inputs, scaling: Scaling, target_scaling: TargetScaling, architecture: Architecture) -> None:
        super().__init__(inputs, scaling, target_scaling, architecture.quantiles)
        self.architecture = architecture
        hidden, dropout, layers = architecture.hidden, architecture.dropout, architecture.lstm_layers
        folded = architecture.form != "paper"
        context = hidden if inputs.static else 0

        self.static_selection = None
        self.static_contexts = nn.ModuleDict()
        if inputs.static:
            self.static_selection = self._selection("static", context=0)
            for use in CONTEXTS:
                self.static_contexts[use] = GatedResidualNetwork(hidden, hidden, hidden, dropout=dropout, folded=folded)

        self.history_selection = self._selection("history", context=context)
        self.future_selection = self._selection("future", context=context)
        # No dropout between layers: the paper has one layer, and cuDNN's own masks would be others when a layer is computed again.
        self.encoder = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.decoder = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.lstm_skip = GatedSkip(hidden, dropout=dropout)
        self.enrichment = GatedResidualNetwork(hidden, hidden, hidden, context=context, dropout=dropout, folded=folded)
        self.attention = InterpretableAttention(hidden, architecture.heads, dropout=dropout)
        self.attention_skip = GatedSkip(hidden, dropout=dropout)
        self.position_wise = GatedResidualNetwork(hidden, hidden, hidden, dropout=dropout, folded=folded)
        self.output_skip = GatedSkip(hidden, dropout=0.0)
        self.heads = QuantileHeads(hidden, architecture.quantiles)

    @classmethod
    def like(cls, model: "TemporalFusionTransformer", architecture: Architecture) -> "TemporalFusionTransformer":
        """Return a new model of the same inputs and scalings with another architecture."""
        return cls(model.inputs, *model.scalings, architecture)

    @classmethod
    def without(cls, model: "TemporalFusionTransformer", names: Collection[str]) -> "TemporalFusionTransformer":
        """Return a new model of the same scalings and architecture, its history input without some columns."""
        return cls(model.inputs.without(names), *model.scalings, model.architecture)

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        """Forecast; see `Forecaster.forward`."""
        context = self.static_context(static)
        return self.forecast(self.select_past(history, context), future, context)

    def static_context(self, static: Tensor | None) -> dict[str, Tensor]:
        """Compute the static context of each part [batch, hidden]; empty without static columns."""
        if self.static_selection is None or self.static_scaling is None:
            assert static is None
            return {}
        assert static is not None
        selected = self.static_selection(self.static_scaling(static))  # [batch, hidden]
        return {use: network(selected) for use, network in self.static_contexts.items()}

    def select_past(self, history: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Select the variables of raw history rows [batch, lookback, hidden]; each row's result depends on that row alone."""
        selected: Tensor = self.history_selection(self.history_scaling(history), _over_time(context, "selection"))
        return selected

    def selection_weights(self, history: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Compute the weight of each history column at each raw history row [batch, lookback, history columns]; a row's sum is 1."""
        return self.history_selection.weights(self.history_scaling(history), _over_time(context, "selection"))

    def forecast(self, past: Tensor, future: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Forecast from the history after variable selection.

        Args:
            past: of `select_past` [batch, lookback, hidden].
            future: raw known columns [batch, horizon, known columns].
            context: of `static_context`.

        Returns:
            [batch, horizon, quantiles] in the target's unit, ascending.
        """
        return self.decode(past, *self.encode(past, context), future, context)

    def encode(self, past: Tensor, context: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the output [batch, lookback, hidden], and the state after the last row, see `initial_state`."""
        encoded, state = recompute(self.encoder, past, self.initial_state(context))
        return encoded, state

    def initial_state(self, context: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Compute the encoder's state and cell before the first row, [LSTM layers, batch, hidden] each; None (zeros) without context."""
        if not context:
            return None
        layers = self.encoder.num_layers
        hidden, cell = (context[use].expand(layers, -1, -1).contiguous() for use in ("lstm_hidden", "lstm_cell"))
        return hidden, cell

    def decode(self, past: Tensor, encoded: Tensor, state: tuple[Tensor, Tensor], future: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Forecast from the result of `encode`; see `forecast`."""
        ahead = self.future_selection(self.future_scaling(future), _over_time(context, "selection"))  # [batch, horizon, hidden]

        # Locality enhancement
        decoded, _ = recompute(self.decoder, ahead, state)
        local = recompute(self._skip_lstm, past, ahead, encoded, decoded)  # [batch, time, hidden]

        final = recompute(self._look_back, local, _over_time(context, "enrichment"))  # [batch, horizon, hidden]
        return self.target_unscaling(self.heads(final))

    def _skip_lstm(self, past: Tensor, ahead: Tensor, encoded: Tensor, decoded: Tensor) -> Tensor:
        return self.lstm_skip(torch.cat([encoded, decoded], dim=1), torch.cat([past, ahead], dim=1))

    def _look_back(self, local: Tensor, context: Tensor | None) -> Tensor:
        """Apply enrichment, attention and the feed-forward network: from [batch, time, hidden] to [batch, horizon, hidden]."""
        horizon = self.inputs.horizon
        enriched = self.enrichment(local, context)
        attended = self.attention_skip(self.attention(enriched, horizon), enriched[:, -horizon:])  # [batch, horizon, hidden]
        return self.output_skip(self.position_wise(attended), local[:, -horizon:])

    def ranges(self, part: InputName) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest scaled value of each variable of one input [variables], the real variables first."""
        scaling = {"static": self.static_scaling, "history": self.history_scaling, "future": self.future_scaling}[part]
        assert scaling is not None
        order = torch.tensor(real_first(self._columns(part)), device=scaling.low.device)
        return scaling.low[order], scaling.high[order]

    def _columns(self, part: InputName) -> tuple[Column, ...]:
        return {"static": self.inputs.static, "history": self.inputs.history, "future": self.inputs.future}[part]

    def _selection(self, part: InputName, *, context: int) -> VariableSelection | PaperVariableSelection:
        columns = self._columns(part)
        hidden, dropout = self.architecture.hidden, self.architecture.dropout
        if self.architecture.form == "paper":
            return PaperVariableSelection(columns, hidden, context=context, dropout=dropout)
        arranged = tuple(columns[position] for position in real_first(columns))
        shared = self.architecture.shared_gates
        if self.architecture.form == "knots":
            counts = [column.categories or self.architecture.knots for column in arranged]
            curves: FoldedCurves = KnotCurves(arranged, hidden, KnotGrid(*self.ranges(part), counts), shared=shared)
        else:
            curves = FoldedCurves(arranged, hidden, shared=shared)
        return VariableSelection(columns, hidden, curves, context=context, dropout=dropout)


def _over_time(context: dict[str, Tensor], use: str) -> Tensor | None:
    """Shape a context to broadcast over the rows of a window [batch, 1, hidden]; None where there are no static columns."""
    return context[use][:, None] if context else None
