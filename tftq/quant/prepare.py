"""Convert a float model, a TFT in the table form, to one that can learn its ranges and compute as the integers will."""

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from typing import Literal, TypeVar

from torch import nn

from tftq.errors import QuantizationError
from tftq.model.curves import FoldedCurves, TableCurves
from tftq.model.forecaster import Forecaster
from tftq.model.variable_selection import PaperVariableSelection
from tftq.quant.dynamic_lstm import DynamicLstm
from tftq.quant.integers import INT4, INT8
from tftq.quant.layers import FakeQuantizedLinear, FakeQuantizedLstm, FakeQuantizedTable
from tftq.quant.quantizers import quantizers
from tftq.spec.formats import WeightStorage

LstmStorage = Literal["fp32", "int8", "dynamic"]
Swaps = dict[type[nn.Module], Callable[..., nn.Module]]
Model = TypeVar("Model", bound=Forecaster)


def prepare(model: Model, *, lstm: LstmStorage, weights: WeightStorage = "int8", keep_float: Sequence[str] = ()) -> Model:
    """Put quantizers on every product: the tables and the linear layers, and on the LSTM's weights where asked.

    Args:
        model: a TFT in the table form, or a network that has none; it is changed in place, and its Parameters stay the same objects.
        lstm: the type the LSTM's weights are stored in.
        weights: the type of the tables and of the linear layers' weights. The quantile heads stay INT8: three rows of few bytes,
            whose errors no later layer evens out.
        keep_float: patterns (fnmatch) of the names of layers, or of modules that hold some, which stay in floating point.

    Returns:
        The model itself.

    Raises:
        QuantizationError: a TFT is not in the table form, or is prepared already; a pattern matches nothing, or they match everything.
    """
    if any(True for _ in quantizers(model)):
        raise QuantizationError("the model is prepared already: use it as it is, or prepare a new table of the float model")
    if any(isinstance(module, FoldedCurves | PaperVariableSelection) for module in model.modules()):
        raise QuantizationError("only the table form is quantized: call prepare(tabulate(model)[0], ...)")
    kept = kept_layers(model, lstm=lstm, keep_float=keep_float)
    swap_modules(model.heads, _swaps(lstm, "int8"), keep=[name.removeprefix("heads.") for name in kept])
    swap_modules(model, _swaps(lstm, weights), keep=kept)
    model.kept_float = kept
    return model


def kept_layers(model: nn.Module, *, lstm: LstmStorage, keep_float: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the layers that `prepare` would leave in floating point, in the model's order.

    Args: see `prepare`. Raises: QuantizationError, as `prepare`, of the patterns.
    """
    swaps = _swaps(lstm, "int8")
    names = [name for name, module in model.named_modules() if type(module) in swaps]
    unmatched = [pattern for pattern in keep_float if not any(_matches(name, pattern) for name in names)]
    if unmatched:
        raise QuantizationError(f"quant.keep_float: {'; '.join(_no_match(pattern, names) for pattern in unmatched)}")
    kept = tuple(name for name in names if any(_matches(name, pattern) for pattern in keep_float))
    if kept and len(kept) == len(names):
        raise QuantizationError(
            f"quant.keep_float: {', '.join(keep_float)} match all {len(names)} layers, so that nothing is quantized; "
            "leave some out, or set quant.method to none"
        )
    return kept


def swap_modules(model: nn.Module, swaps: Swaps, *, keep: Collection[str] = ()) -> None:
    """Replace every submodule of exactly one of these types, except those named in `keep`, by what its function returns, in place."""
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if type(child) in swaps and ".".join(filter(None, (path, name))) not in keep:
                with next(child.parameters()).device:  # so that its new tensors lie where the child's parameters lie
                    replacement = swaps[type(child)](child)
                setattr(parent, name, replacement.train(child.training))


def prepared_copy(model: Model, *, lstm: LstmStorage, weights: WeightStorage = "int8", keep_float: Sequence[str] = ()) -> Model:
    """Return a prepared copy of a model, which stays unchanged; see `prepare`."""
    return prepare(copy.deepcopy(model), lstm=lstm, weights=weights, keep_float=keep_float)


def _swaps(lstm: LstmStorage, weights: WeightStorage) -> Swaps:
    """Return the types of layers to quantize, with the functions that make their replacements."""
    swaps: Swaps = {
        nn.Linear: partial(FakeQuantizedLinear, kind=INT4 if weights == "int4" else INT8),
        TableCurves: partial(FakeQuantizedTable, weights=weights),
    }
    lstms: dict[LstmStorage, Callable[..., nn.Module]] = {"int8": FakeQuantizedLstm, "dynamic": DynamicLstm}
    return {**swaps, nn.LSTM: lstms[lstm]} if lstm in lstms else swaps


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a layer or a module that contains it."""
    return any(fnmatchcase(part, pattern) for part in _within(name))


def _within(name: str) -> Iterable[str]:
    """Return the names of the modules that contain a layer, and the layer's."""
    return accumulate(name.split("."), "{}.{}".format)


def _no_match(pattern: str, names: list[str]) -> str:
    """Describe a pattern that matches no layer: list similar names, or all names."""
    candidates = dict.fromkeys(part for name in names for part in _within(name))
    close = get_close_matches(pattern, candidates)
    advice = f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(names)}, or the modules that hold them"
    return f"{pattern!r} matches no layer that is quantized; {advice}"
