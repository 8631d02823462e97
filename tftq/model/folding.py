"""Merging linear maps that no non-linearity separates: exact in eval mode, and a third of the parameters as published."""

from dataclasses import replace

import torch
from torch import nn

from tftq.model.curves import FoldedCurves, category_rows, group_sizes
from tftq.model.layers import GatedResidualNetwork
from tftq.model.tft import TemporalFusionTransformer
from tftq.model.variable_selection import PaperVariableSelection, VariableSelection


@torch.no_grad()
def fold(model: TemporalFusionTransformer) -> TemporalFusionTransformer:
    """Convert a network to the folded form, which computes the same function.

    Args:
        model: of the form `paper`; a folded one is returned unchanged.

    Returns:
        A new model, equal in eval mode.
    """
    if model.architecture.form != "paper":
        return model
    folded = TemporalFusionTransformer.like(model, replace(model.architecture, form="folded"))
    target = dict(folded.named_modules())
    merged: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, PaperVariableSelection):
            _fold_selection(module, target[name])
        elif isinstance(module, GatedResidualNetwork):
            _fold_grn(module, target[name])
        else:
            continue
        merged.add(name + ".")
    same = {key: value for key, value in model.state_dict().items() if not key.startswith(tuple(merged))}
    missing, unexpected = folded.load_state_dict(same, strict=False)
    assert not unexpected and all(key.startswith(tuple(merged)) for key in missing)
    return folded.train(model.training).to(model.target_scale.device)


def _fold_grn(paper: GatedResidualNetwork, folded: GatedResidualNetwork) -> None:
    """Fold a GRN: GLU(W4(W1 e + b1) + b4) = GLU((W4 W1) e + (W4 b1 + b4))."""
    assert isinstance(paper.intermediate, nn.Linear)
    folded.gate.weight.copy_(paper.gate.weight @ paper.intermediate.weight)
    folded.gate.bias.copy_(paper.gate.weight @ paper.intermediate.bias + paper.gate.bias)
    for part in ("input", "context", "skip", "norm"):
        module = getattr(paper, part)
        if module is not None:
            getattr(folded, part).load_state_dict(module.state_dict())


def _fold_selection(paper: PaperVariableSelection, folded: VariableSelection) -> None:
    assert isinstance(folded.curves, FoldedCurves)
    _fold_joint(paper, folded.joint)
    _fold_curves(paper, folded.curves)


def _fold_joint(paper: PaperVariableSelection, folded: GatedResidualNetwork) -> None:
    """Fold the joint map over all embeddings, [variables · hidden] wide, into one over the variables and codes themselves."""
    joint, variables = paper.joint, len(paper.columns)
    assert isinstance(joint.intermediate, nn.Linear) and isinstance(folded.skip, nn.Linear)
    for weights, bias, merged in (
        (paper.joint_input_weights, paper.joint_input_bias, folded.input),
        (paper.joint_skip_weights, paper.joint_skip_bias, folded.skip),
    ):
        by_variable = torch.cat(list(weights), dim=1).unflatten(1, (variables, -1))  # [outputs, variables, hidden]
        real = by_variable[:, : paper.real]
        merged.weight[:, : paper.real] = torch.einsum("ovh,vh->ov", real, paper.embedding_weight)
        merged.bias.copy_(bias + torch.einsum("ovh,vh->o", real, paper.embedding_bias))
        for variable, rows in category_rows(paper.columns):
            codes = slice(paper.real + rows.start, paper.real + rows.stop)
            merged.weight[:, codes] = by_variable[:, variable] @ paper.category_embedding[rows].T
    folded.gate.weight.copy_(joint.gate.weight @ joint.intermediate.weight)
    folded.gate.bias.copy_(joint.gate.weight @ joint.intermediate.bias + joint.gate.bias)
    folded.norm.load_state_dict(joint.norm.state_dict())
    if joint.context is not None and folded.context is not None:
        folded.context.load_state_dict(joint.context.state_dict())


def _fold_curves(paper: PaperVariableSelection, folded: FoldedCurves) -> None:
    """Fold each variable's own GRN: affine before the ELU, or a row for a category; W1 merged into the gate."""
    real = slice(0, paper.real)
    input_weight = torch.cat(list(paper.input_weights))  # [variables, hidden, hidden]
    folded.slope.copy_(torch.einsum("vh,vho->vo", paper.embedding_weight, input_weight[real]))
    folded.intercept.copy_(torch.einsum("vh,vho->vo", paper.embedding_bias, input_weight[real]) + paper.input_bias[real, 0])
    folded.skip_slope.copy_(paper.embedding_weight)
    folded.skip_intercept.copy_(paper.embedding_bias)
    for variable, rows in category_rows(paper.columns):
        embedding = paper.category_embedding[rows]
        folded.category_input[rows] = embedding @ input_weight[variable] + paper.input_bias[variable]
        folded.category_skip[rows] = embedding
    for weight, inner, gate in zip(folded.gate_weights, paper.intermediate_weights, paper.gate_weights, strict=True):
        weight.copy_(inner @ gate)
    inner_biases = paper.intermediate_bias.split(group_sizes(paper.columns))
    further = [bias @ gate for bias, gate in zip(inner_biases, paper.gate_weights, strict=True)]
    folded.gate_bias.copy_(torch.cat(further) + paper.gate_bias)
    folded.norm_weight.copy_(paper.norm_weight)
    folded.norm_bias.copy_(paper.norm_bias)
