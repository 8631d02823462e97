"""Estimate in closed form the host memory of an export."""

from tftq.plan.peaks import PlannedPeak
from tftq.recipe.model import Mamba2Recipe
from tftq.recipe.schema import Recipe
from tftq.spec.formats import FORMATS, Format
from tftq.train.build import architecture_of

EXPORT_WINDOWS = 32  # windows per run of a session, at the gate and to be measured: more would only take more memory
FLOAT = 4
PROJECTIONS, DECAYS = 8, 4  # of a Mamba-2's block, that are held at once
UNPACKING = 3  # INT8 tables that are held besides while one in four bits is unpacked


def plan_export(recipe: Recipe, kind: Format, *, weights: int, knots: int, kept: int = 0) -> PlannedPeak:
    """Estimate the memory of building a file and of running it; return the larger.

    Building holds the model, the copy that is written, the graph and its bytes. Running holds the model, the session with the weights as
    read and as the runtime packs them, and the rows of hat functions of the history input twice: empty, and with the shares put in.
    INT4 is traced as INT8, and unpacked by the session in steps that each make a table of bytes.
    A CPU computes FP16 in FP32: it holds the weights so too, and the rows as FP16 twice and as FP32, in an arena that doubles as it grows.
    A Mamba-2's session holds, for every row of a window, the output of a block's first projection some eight times, and the decays
    between the row and those of its chunk some four times, in FP32 (as measured at five sizes; a quarter more or less).
    Everything else is small beside these; Python's and the exporter's own modules (about 200 MB) are not counted.

    Args:
        recipe: what is exported.
        kind: the format.
        weights: numbers in the table form.
        knots: rows of the table of the history input.
        kept: numbers of the layers that stay in floating point where the others are quantized.

    Returns:
        The peak: parameters are the model and its copy, workspace is the graph with its bytes, or the session.
    """
    pair = FORMATS[kind].is_pair
    form = FORMATS[recipe.result if pair else kind]
    assert form.weight_bits is not None
    hidden, size = recipe.model.hidden, max(form.weight_bits // 8, 1)  # bytes of a weight
    half = FORMATS[kind].for_gpu
    if isinstance(recipe.model, Mamba2Recipe):
        sizes, steps = architecture_of(recipe.model), recipe.data.lookback + recipe.data.horizon
        of_rows = steps * FLOAT * (PROJECTIONS * sum(sizes.projected) + DECAYS * sizes.heads * min(sizes.chunk, steps))
        lstm = 0
    else:
        of_rows = recipe.data.lookback * knots * (2 * (2 + 2 + FLOAT) if half else 2 * size)
        lstm = 2 * recipe.model.lstm_layers * (8 * hidden * hidden + 8 * hidden)
    unquantized = 2 if half else FLOAT
    lstm_size = unquantized if size == 1 and recipe.quant.lstm == "fp32" else size
    more = (unquantized - size) * kept if size == 1 else 0
    model, file = FLOAT * weights, size * (weights - lstm) + lstm_size * lstm + more
    packed = model if half else file
    unpacked = UNPACKING * hidden * knots if form.weight_bits == 4 else 0
    copies, sessions = (2, 2) if pair else (1, 1)  # its halves; the one-piece model, and both halves together
    building = {"parameters": (1 + copies) * model, "workspace": 2 * file, "activations": 0}
    running = {"parameters": model, "workspace": sessions * (file + packed + unpacked), "activations": EXPORT_WINDOWS * of_rows}
    components = max(building, running, key=lambda parts: sum(parts.values()))
    return PlannedPeak(sum(components.values()), {**components, "gradients": 0, "optimizer": 0, "left_over": 0})
