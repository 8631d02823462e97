"""Remove the history variables with the least selection weight: a smaller network that continues from the larger one's state."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tftq.model.batch import Batch
from tftq.model.curves import FoldedCurves, category_rows
from tftq.model.folding import fold
from tftq.model.tft import TemporalFusionTransformer
from tftq.model.variable_selection import VariableSelection


@torch.no_grad()
def prune(
    model: TemporalFusionTransformer, keep: int, batches: Callable[[], Iterable[Batch]]
) -> tuple[TemporalFusionTransformer, dict[str, float]]:
    """Keep the history variables that have the highest mean selection weight; the others' contribution is replaced by its mean.

    In the joint network's input each removed variable stands at its mean, which its biases absorb. In the sum over variables, the
    kept ones share their mean weight, and the mean of all else is a shift; both go into the curves' scale and shift, since the weights
    add up to 1. So the mean output of variable selection stays the same.

    Args:
        model: in eval mode, of any form but the table; `paper` is folded first, which is exact.
        keep: how many variables to keep, fewer than there are; of equal ones the first, and constant ones only after all others.
        batches: returns the windows to average over, on the model's device, each time it is called; they are read twice.

    Returns:
        A new model, in eval mode, with the kept variables in their order; and the mean weight of every variable, the heaviest first and
        constant ones last, so that the first `keep` of them are those.
    """
    assert not model.training
    full = fold(model)
    weights, entering = _means(full, batches())
    names = [column.name for column in full.inputs.history]
    assert 1 <= keep < len(names)
    scaling = full.history_scaling
    # A constant variable carries no information, and its mean replaces it exactly, however large its weight: it goes before all others.
    heaviest = torch.where(scaling.low == scaling.high, weights - 1, weights).argsort(descending=True, stable=True)
    small = TemporalFusionTransformer.without(full, [names[place] for place in heaviest[keep:].tolist()]).to(weights.device).eval()
    changed = ("history_selection.", "history_scaling.")
    same = {key: value for key, value in full.state_dict().items() if not key.startswith(changed)}
    missing, unexpected = small.load_state_dict(same, strict=False)
    assert not unexpected and all(key.startswith(changed) for key in missing)
    _slice(full.history_selection, small.history_selection, entering)
    _keep_the_mean(full, small, weights[heaviest[:keep]].sum(), batches())
    return small, {names[place]: float(weights[place]) for place in heaviest.tolist()}


def _means(model: TemporalFusionTransformer, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Average over all history rows: the selection weights [history columns], and the joint network's inputs [real variables + codes]."""
    selection = model.history_selection
    weights = entering = torch.zeros(())
    rows = 0
    for batch in batches:
        context = model.static_context(batch.static)
        weights = weights + model.selection_weights(batch.history, context).double().sum((0, 1))
        entering = entering + selection.indicators(selection.arrange(model.history_scaling(batch.history))).double().sum((0, 1))
        rows += batch.history.shape[0] * batch.history.shape[1]
    assert rows, "no window to take means over"
    return weights / rows, entering / rows


def _slice(full: nn.Module, small: nn.Module, entering: Tensor) -> None:
    """Copy into a selection the parameters of the same variables from one with more variables."""
    assert isinstance(full, VariableSelection) and isinstance(small, VariableSelection)
    assert isinstance(full.curves, FoldedCurves) and isinstance(small.curves, FoldedCurves)
    variables = [place for place, column in enumerate(full.columns) if column in small.columns]
    codes = [code for variable, rows in category_rows(full.columns) if variable in variables for code in range(rows.start, rows.stop)]
    real = variables[: small.real]
    _slice_joint(full, small, variables, [*real, *(full.real + code for code in codes)], entering)
    _slice_curves(full.curves, small.curves, variables, real, codes)


def _slice_joint(full: VariableSelection, small: VariableSelection, variables: list[int], inputs: list[int], entering: Tensor) -> None:
    joint, kept = full.joint, small.joint
    assert isinstance(joint.skip, nn.Linear) and isinstance(kept.skip, nn.Linear)
    constant = entering.float()
    constant[inputs] = 0  # the inputs that remain
    kept.input.weight.copy_(joint.input.weight[:, inputs])
    kept.input.bias.copy_(joint.input(constant))
    kept.skip.weight.copy_(joint.skip.weight[variables][:, inputs])
    kept.skip.bias.copy_(joint.skip(constant)[variables])
    halves = [*variables, *(len(full.columns) + variable for variable in variables)]  # the value and the sigmoid of the GLU
    kept.gate.weight.copy_(joint.gate.weight[halves])
    kept.gate.bias.copy_(joint.gate.bias[halves])
    kept.norm.weight.copy_(joint.norm.weight[variables])
    kept.norm.bias.copy_(joint.norm.bias[variables])
    if joint.context is not None and kept.context is not None:
        kept.context.load_state_dict(joint.context.state_dict())


def _slice_curves(full: FoldedCurves, small: FoldedCurves, variables: list[int], real: list[int], codes: list[int]) -> None:
    for name in ("slope", "intercept", "skip_slope", "skip_intercept"):
        getattr(small, name).copy_(getattr(full, name)[real])
    for name in ("category_input", "category_skip"):
        getattr(small, name).copy_(getattr(full, name)[codes])
    for name in ("gate_bias", "norm_weight", "norm_bias"):
        getattr(small, name).copy_(getattr(full, name)[variables])
    for place, variable in enumerate(variables):
        small.gate_weight(place).copy_(full.gate_weight(variable))


def _keep_the_mean(full: TemporalFusionTransformer, small: TemporalFusionTransformer, share: Tensor, batches: Iterable[Batch]) -> None:
    """Rescale the kept variables' contribution to its share of the whole, and shift it to keep the mean: share · x + shift."""
    places = [place for place, column in enumerate(full.inputs.history) if column in small.inputs.history]
    lacking = torch.zeros((), device=share.device, dtype=torch.float64)
    rows = 0
    for batch in batches:
        context = full.static_context(batch.static)
        whole, part = full.select_past(batch.history, context), small.select_past(batch.history[..., places], context)
        lacking = lacking + (whole.double() - share * part.double()).sum((0, 1))
        rows += whole.shape[0] * whole.shape[1]
    curves = small.history_selection.curves
    assert isinstance(curves, FoldedCurves)
    curves.norm_weight.mul_(share.float())
    curves.norm_bias.mul_(share.float()).add_((lacking / rows).float())
