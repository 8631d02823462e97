"""The workspace that an LSTM keeps from the forward to the backward pass beside its outputs."""

import torch

_PAGE = 4096  # bytes
_LINE = 64  # bytes of a line of the cache


def lstm_workspace_bytes(steps: int, batch: int, hidden: int, dtype: torch.dtype = torch.float32) -> int:
    """Compute the bytes that oneDNN keeps of one LSTM layer in one direction, which fake tensors report as 0.

    Gates of every step; outputs, and both gradients of them, at both ends of the layer and for one step more; the same for cells and
    their gradient, without padding; and the space for a layer's projection. Gradients are FP32 in every format. Each part
    starts on a page. Fitted to what `aten::mkldnn_rnn_layer` returns in torch 2.13, and exact for it.

    Args:
        steps: of time.
        batch: sequences.
        hidden: width.
        dtype: the layer's computing type, float32 or bfloat16.
    """
    size = dtype.itemsize
    rows, states = steps * batch, 2 * (steps + 1) * batch
    outputs, output_gradients = states * _padded(hidden, size), states * _padded(hidden, 4)
    cells, cell_gradients = states * hidden * size, states * hidden * 4
    parts = [rows * _padded(4 * hidden, size), outputs, output_gradients, output_gradients, cells, cell_gradients]
    return sum(-(-part // _PAGE) * _PAGE for part in [*parts, rows * _padded(hidden, size)])


def _padded(width: int, size: int) -> int:
    """Compute the bytes of a row: whole cache lines, and one more where rows would otherwise fall on the same lines of the cache.

    Args: width of the row in numbers; size of a number in bytes.
    """
    per_line = _LINE // size
    numbers = -(-width // per_line) * per_line
    return size * (numbers + per_line if numbers % 256 == 0 else numbers)
