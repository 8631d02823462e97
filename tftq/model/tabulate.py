"""Convert any form to the table form: every curve replaced by its values at knots, with the resulting error."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from tftq.model.curves import FoldedCurves, KnotCurves, TableCurves
from tftq.model.folding import fold
from tftq.model.grid import KnotGrid
from tftq.model.tft import InputName, TemporalFusionTransformer
from tftq.model.variable_selection import VariableSelection

KNOT_COUNTS = (4, 8, 16, 32, 64, 128, 256)
PROBES_BETWEEN_KNOTS = 4
TOLERANCE = 0.05  # of a curve's distance from its table, in units of the curve's own LayerNorm


@dataclass(frozen=True)
class TabulatedVariable:
    """The table of one curve, and its error.

    Attributes:
        name: the variable's, prefixed by the name of its input.
        knots: how many knots its row block has.
        error: largest distance of the interpolated from the true curve, in units of the curve's own LayerNorm; 0 from `knots`.
    """

    name: str
    knots: int
    error: float


@torch.no_grad()
def tabulate(
    model: TemporalFusionTransformer, *, tolerance: float = TOLERANCE
) -> tuple[TemporalFusionTransformer, list[TabulatedVariable]]:
    """Replace every curve by a table of its values.

    Args:
        model: of any form. From `knots` the result computes the same numbers; from the others, each variable gets the fewest
            knots of 4 to 256 that keep its curve within `tolerance`.
        tolerance: largest distance from the true curve that is accepted, in units of its LayerNorm.

    Returns:
        A new model in the table form, in eval mode, and a line for each variable; an error above the tolerance there
        means that 256 knots were not enough.
    """
    table = copy.deepcopy(fold(model)).eval()
    return table, put_tables(table, tolerance=tolerance)


@torch.no_grad()
def put_tables(model: TemporalFusionTransformer, *, tolerance: float = TOLERANCE) -> list[TabulatedVariable]:
    """Put tables into a model of the form `knots` or `folded`, in place; see `tabulate`."""
    report = []
    parts: tuple[InputName, ...] = ("static", "history", "future")
    for part in parts:
        selection = getattr(model, f"{part}_selection")
        if isinstance(selection, VariableSelection):
            curves, lines = _tabulate_curves(selection.curves, part, model, tolerance)
            selection.curves = curves.train(selection.training)
            report += lines
    return report


def _tabulate_curves(
    curves: FoldedCurves | TableCurves, part: InputName, model: TemporalFusionTransformer, tolerance: float
) -> tuple[TableCurves, list[TabulatedVariable]]:
    assert isinstance(curves, FoldedCurves)
    names = [f"{part}.{column.name}" for column in curves.columns]
    if isinstance(curves, KnotCurves):
        lines = [TabulatedVariable(name, count, 0.0) for name, count in zip(names, curves.grid.counts, strict=True)]
        return TableCurves(curves.grid, curves.table()), lines
    low, high = model.ranges(part)
    blocks, lines = [], []
    for variable, name in enumerate(names):
        values, error = _sample(curves, variable, low[variable], high[variable], tolerance)
        blocks.append(values)
        lines.append(TabulatedVariable(name, len(values), error))
    grid = KnotGrid(low, high, [line.knots for line in lines])
    return TableCurves(grid, torch.cat(blocks)), lines


def _sample(curves: FoldedCurves, variable: int, low: Tensor, high: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """Find the fewest knots that keep one curve within the tolerance, and the remaining error."""
    categories = curves.columns[variable].categories
    if categories:
        return curves.evaluate(variable, torch.arange(categories, device=low.device).float()), 0.0
    values, error = torch.empty(0), float("inf")
    for count in KNOT_COUNTS:
        probes = torch.linspace(0, 1, (count - 1) * PROBES_BETWEEN_KNOTS + 1, device=low.device)
        true = curves.evaluate(variable, low + (high - low) * probes)  # [probes, hidden]
        values = true[::PROBES_BETWEEN_KNOTS]
        error = interpolation_error(true)
        if error <= tolerance:
            break
    return values, error


def interpolation_error(true: Tensor) -> float:
    """Return the largest distance between a curve and the line between its knots.

    Args: true: the curve at the knots and at the probes between them [(knots - 1) * PROBES_BETWEEN_KNOTS + 1, hidden].
    """
    left, right = true[:-1:PROBES_BETWEEN_KNOTS], true[PROBES_BETWEEN_KNOTS::PROBES_BETWEEN_KNOTS]
    worst = 0.0
    for step in range(1, PROBES_BETWEEN_KNOTS):
        line = torch.lerp(left, right, step / PROBES_BETWEEN_KNOTS)
        worst = max(worst, float((true[step::PROBES_BETWEEN_KNOTS] - line).abs().max()))
    return worst
