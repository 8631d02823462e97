"""A few made-up bars in two unbroken runs, small enough to work everything out by hand."""

import numpy as np
import torch

from tftq.data.scaling import Scaling, TargetScaling, fit_columns
from tftq.data.windows import Datasets, LogReturn, Windows
from tftq.spec.inputs import Column, Inputs

LOOKBACK = 4
COLUMNS = (Column("price", "observed"), Column("volume", "observed"), Column("hour", "known"))
CLOSES = (100.0, 101.0, 99.0, 100.0, 102.0, 101.0, 103.0, 104.0)  # of a run: its windows end at the fourth bar to the last but one


def windows_of(close: np.ndarray, rows: np.ndarray, runs: list[int], name: str = "train") -> Windows:
    """Windows of runs of some rows each, one after another."""
    starts, first = [], 0
    for count in runs:
        starts += range(first, first + count - LOOKBACK)
        first += count
    inputs = Inputs(COLUMNS, LOOKBACK, horizon=1)
    return Windows(name, inputs, rows, np.arange(len(rows)) * 60, np.array(starts), LogReturn(close))


def two_runs() -> Windows:
    """The run of `CLOSES`, and after a gap its mirror image."""
    close = np.array([*CLOSES, *CLOSES[::-1]])
    rows = torch.randn(len(close), len(COLUMNS), generator=torch.Generator().manual_seed(0)).numpy()
    return windows_of(close, rows, [len(CLOSES)] * 2)


def waves(count: int = 120) -> Datasets:
    """Bars whose price rises and falls by turns, and tells by its first column which it will do next."""
    phase = torch.arange(count) * 2 * torch.pi / 16
    close = (100 * torch.exp(0.01 * torch.sin(phase)).double()).numpy()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(count, 2, generator=generator)
    rows = torch.cat([torch.cos(phase)[:, None], noise], dim=1).contiguous().numpy()
    train = windows_of(close, rows, [count])
    first, second = np.split(np.arange(len(train)), [2 * len(train) // 3])
    scaling, _ = fit_columns(COLUMNS, [rows])
    step = float(np.log(close[1:] / close[:-1]).std(ddof=1))
    target = TargetScaling(np.zeros(1, np.float32), np.full(1, step, np.float32))
    return Datasets(train.some(first), train.some(second), None, Scaling(scaling, None), target, [])
