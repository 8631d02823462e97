"""A small model over made-up columns, some of them categories, for the tests of model, quant and export."""

import numpy as np
import torch
from torch import Tensor

from tftq.data.scaling import ColumnScaling, Scaling, TargetScaling
from tftq.model.mamba2 import Mamba2, Mamba2Architecture
from tftq.model.tft import Architecture, Form, TemporalFusionTransformer
from tftq.spec.inputs import Column, Inputs

STATIC = (Column("sector", "static", categories=4), Column("size", "static"))
OBSERVED = (Column("price", "observed"), Column("state", "observed", categories=3), Column("volume", "observed"))
KNOWN = (Column("hour", "known"), Column("holiday", "known", categories=2))


def small_inputs(*, static: bool = True, lookback: int = 12, horizon: int = 4) -> Inputs:
    return Inputs((STATIC if static else ()) + OBSERVED + KNOWN, lookback, horizon)


def column_scaling(columns: tuple[Column, ...]) -> ColumnScaling:
    """Real columns: centred on 0.5, one of them tailed, within ±3; categories: their codes."""
    count = len(columns)
    category = np.array([column.categories > 0 for column in columns])
    top = np.array([column.categories - 1 for column in columns])
    return ColumnScaling(
        center=np.where(category, 0, 0.5).astype(np.float32),
        scale=np.where(category, 1, 2).astype(np.float32),
        tailed=np.arange(count) == (2 if count > 2 else -1),
        low=np.where(category, 0, -3).astype(np.float32),
        high=np.where(category, top, 3).astype(np.float32),
    )


def small_model(
    form: Form = "knots",
    *,
    static: bool = True,
    hidden: int = 16,
    heads: int = 4,
    lstm_layers: int = 2,
    knots: int = 16,
    shared_gates: bool = False,
    seed: int = 0,
) -> TemporalFusionTransformer:
    torch.manual_seed(seed)
    architecture = Architecture(hidden, heads, lstm_layers, 0.1, (0.1, 0.5, 0.9), form, knots, shared_gates)
    return TemporalFusionTransformer(*small_data(static=static), architecture)


def small_mamba2(*, static: bool = True, hidden: int = 16, layers: int = 2, chunk: int = 6, seed: int = 0) -> Mamba2:
    """Of 16 rows in chunks of 6, the last one not full."""
    torch.manual_seed(seed)
    architecture = Mamba2Architecture(hidden, layers, 8, 8, 2, 4, chunk, 0.1, (0.1, 0.5, 0.9))
    return Mamba2(*small_data(static=static), architecture)


def small_data(*, static: bool = True) -> tuple[Inputs, Scaling, TargetScaling]:
    """The columns, and what they and the target are scaled by."""
    inputs = small_inputs(static=static)
    scaling = Scaling(column_scaling(inputs.history), column_scaling(inputs.static) if static else None)
    return inputs, scaling, TargetScaling(center=np.full(4, 10, np.float32), scale=np.array([1, 2, 3, 4], np.float32))


def example(inputs: Inputs, batch: int = 3, seed: int = 1) -> tuple[Tensor, ...]:
    """Raw inputs in the order of `Inputs.shapes`: real values a little beyond the scaled range, valid codes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for name, shape in inputs.shapes(batch).items():
        x = torch.randn(shape, generator=generator) * 5
        for position, column in enumerate(getattr(inputs, name)):
            if column.categories:
                x[..., position] = torch.randint(column.categories, shape[:-1], generator=generator).float()
        tensors.append(x)
    return tuple(tensors)
