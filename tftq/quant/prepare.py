"""From a float model in the table form to one that can learn its ranges and compute as the integers will."""

import copy
from collections.abc import Callable
from typing import Literal

from torch import nn

from tftq.errors import QuantizationError
from tftq.model.curves import FoldedCurves, TableCurves
from tftq.model.tft import TemporalFusionTransformer
from tftq.model.variable_selection import PaperVariableSelection
from tftq.quant.fake_quantize import quantizers
from tftq.quant.modules import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable

LstmStorage = Literal["fp32", "int8"]


def prepare(model: TemporalFusionTransformer, *, lstm: LstmStorage) -> TemporalFusionTransformer:
    """Put quantizers on every product: the tables and the linear layers, and on the LSTM's weights where asked.

    Args:
        model: in the table form; it is changed in place, and its Parameters stay the same objects.
        lstm: what the LSTM's weights are stored in.

    Returns:
        The model itself.

    Raises:
        QuantizationError: the model is not in the table form, or is prepared already.
    """
    if any(True for _ in quantizers(model)):
        raise QuantizationError("the model is prepared already: go on with it as it is, or prepare a new table of the float model")
    if any(isinstance(module, FoldedCurves | PaperVariableSelection) for module in model.modules()):
        raise QuantizationError("only the table form is quantized: call prepare(tabulate(model)[0], ...)")
    swaps: dict[type[nn.Module], Callable[..., nn.Module]] = {nn.Linear: FakeQuantizedLinear, TableCurves: FakeQuantizedTable}
    if lstm == "int8":
        swaps[nn.LSTM] = FakeQuantizedLstm
    swap_modules(model, swaps)
    return model


def swap_modules(model: nn.Module, swaps: dict[type[nn.Module], Callable[..., nn.Module]]) -> None:
    """Replace every submodule of exactly one of these types by what its function makes of it, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in swaps:
                with next(child.parameters()).device:  # so that what it adds lies where the child's parameters lie
                    replacement = swaps[type(child)](child)
                setattr(parent, name, replacement.train(child.training))


def prepared_copy(model: TemporalFusionTransformer, *, lstm: LstmStorage) -> TemporalFusionTransformer:
    """As `prepare`, leaving the model as it is."""
    return prepare(copy.deepcopy(model), lstm=lstm)
