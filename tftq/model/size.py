"""The number of parameters of a model, in closed form."""

from tftq.model.mamba2 import Mamba2Architecture
from tftq.model.tft import Architecture
from tftq.spec.inputs import Column, Inputs


def parameter_count(inputs: Inputs, architecture: Architecture | Mamba2Architecture) -> int:
    """Count the trainable parameters of a model, without building it.

    Args:
        inputs: the columns.
        architecture: sizes and form.
    """
    if isinstance(architecture, Mamba2Architecture):
        return _mamba2(inputs, architecture)
    hidden, heads = architecture.hidden, architecture.heads
    paper = architecture.form == "paper"
    context = hidden if inputs.static else 0
    grn = _grn(hidden, hidden, hidden, paper=paper)
    gated_skip = linear(hidden, 2 * hidden) + 2 * hidden
    lstm = architecture.lstm_layers * (2 * 4 * hidden * hidden + 2 * 4 * hidden)
    attention = 2 * hidden * hidden + 2 * hidden * (hidden // heads)
    count = _selection(inputs.history, architecture, context) + _selection(inputs.future, architecture, context)
    if inputs.static:
        count += _selection(inputs.static, architecture, 0) + 4 * grn
    count += 2 * lstm + 3 * gated_skip + attention
    count += grn + context * hidden + grn  # static enrichment with its context, and the position-wise network
    return count + linear(hidden, len(architecture.quantiles))


def _mamba2(inputs: Inputs, architecture: Mamba2Architecture) -> int:
    hidden, (inner, convolved, heads) = architecture.hidden, architecture.projected
    rows = [columns for columns in (inputs.history, inputs.future, inputs.static) if columns]
    embeddings = sum(linear(sum(column.categories or 1 for column in columns), hidden) for columns in rows)
    projections = hidden * (inner + convolved + heads) + inner * hidden
    block = projections + (architecture.conv + 1) * convolved + 3 * heads + hidden + inner  # decays, steps and skips of heads; norms
    return embeddings + architecture.layers * block + hidden + linear(hidden, len(architecture.quantiles))


def linear(inputs: int, outputs: int) -> int:
    """Count the weight and bias of a linear map."""
    return inputs * outputs + outputs


def _grn(inputs: int, hidden: int, outputs: int, *, paper: bool) -> int:
    return linear(inputs, hidden) + (linear(hidden, hidden) if paper else 0) + linear(hidden, 2 * outputs) + 2 * outputs


def _selection(columns: tuple[Column, ...], architecture: Architecture, context: int) -> int:
    hidden, paper = architecture.hidden, architecture.form == "paper"
    variables, codes = len(columns), sum(column.categories for column in columns)
    real = sum(column.categories == 0 for column in columns)
    width = variables * hidden if paper else real + codes
    joint = _grn(width, hidden, variables, paper=paper) + linear(width, variables) + context * hidden
    gate, own = 2 * hidden * hidden, 2 * hidden + 2 * hidden  # the gate's weight; each variable's bias and norm
    if paper:
        return joint + variables * (gate + own + 2 * linear(hidden, hidden)) + (2 * real + codes) * hidden
    gates = gate if architecture.shared_gates else variables * gate
    return joint + gates + variables * own + (4 * real + 2 * codes) * hidden  # affine before the ELU and on the skip
