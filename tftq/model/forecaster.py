"""The interface of a network to training, quantization and export: raw columns in, quantiles in the target's own unit out."""

from typing import ClassVar

from torch import Tensor, nn

from tftq.data.scaling import Scaling, TargetScaling
from tftq.model.layers import QuantileHeads
from tftq.model.scaling import InputScaling, TargetUnscaling
from tftq.spec.inputs import Inputs


class Forecaster(nn.Module):
    """A network that scales its inputs and unscales its forecasts itself.

    Args:
        inputs: the columns and the window's shape.
        scaling: of the input columns, fitted on the training part.
        target_scaling: of the target, one scale for each step.
        quantiles: the levels that are forecast, ascending.

    Attributes:
        kind: the name of networks of this class in recipes and exported files.
        kept_float: the names of the layers that stayed in floating point where the others were quantized.
        scalings: of the columns and of the target, as given.
        heads: the layer that maps the last hidden layer to quantiles.
    """

    kind: ClassVar[str]
    kept_float: tuple[str, ...] = ()
    heads: QuantileHeads

    def __init__(self, inputs: Inputs, scaling: Scaling, target_scaling: TargetScaling, quantiles: tuple[float, ...]) -> None:
        super().__init__()
        self.inputs, self.quantiles = inputs, quantiles
        self.scalings = scaling, target_scaling
        self.history_scaling = InputScaling(scaling.history.at(inputs.history_places))
        self.future_scaling = InputScaling(scaling.history.at(range(inputs.first_known, len(inputs.temporal))))
        self.target_unscaling = TargetUnscaling(target_scaling)
        self.static_scaling: InputScaling | None = None
        if inputs.static:
            assert scaling.static is not None
            self.static_scaling = InputScaling(scaling.static)

    @property
    def target_scale(self) -> Tensor:
        """Return the scale of the target at each step [horizon]."""
        return self.target_unscaling.scale

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        """Forecast the quantiles of the target.

        Args:
            history: raw observed and known columns [batch, lookback, history columns].
            future: raw known columns [batch, horizon, known columns].
            static: raw static columns [batch, static columns], where the inputs have any.

        Returns:
            [batch, horizon, quantiles] in the target's unit, ascending.
        """
        raise NotImplementedError
