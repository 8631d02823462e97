"""Find the layer where a number stopped being finite; only called once a result is known not to be finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tftq.model.batch import Batch


def find_non_finite(model: nn.Module, batch: Batch) -> str | None:
    """Describe where the first non-finite number comes from: the data, a weight, or the arithmetic of a layer.

    Runs the model once more over `batch`, in its current mode and autocast, with a hook on every layer.

    Args:
        model: the model that returned a non-finite number.
        batch: a batch for which it may have done so, on the model's device.

    Returns:
        A clause for an error message, which names the first such input, or layer and the weights at fault in it; None where every
        number is finite this time.
    """
    for name, tensor in batch._asdict().items():
        if tensor is not None and not tensor.isfinite().all():
            windows = (~tensor.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
            return f"the batch's {name} is not finite in its windows {windows[:5]}"
    with torch.no_grad(), _first_layer(model) as layers:
        model(*batch.inputs)
    if not layers:
        return None
    name, layer = layers[0]
    bad = [own for own, parameter in layer.named_parameters() if not parameter.isfinite().all()]
    cause = f"its weights {', '.join(bad)} are not finite" if bad else "its weights are finite, so its input or its arithmetic overflows"
    return f"the first layer with such an output is {name or 'the model itself'} ({type(layer).__name__}); {cause}"


@contextmanager
def _first_layer(model: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Collect layers with an output that is not finite, in the order in which they finish; parents finish after their children."""
    layers: list[tuple[str, nn.Module]] = []
    names = {layer: name for name, layer in model.named_modules()}

    def inspect(layer: nn.Module, _: object, output: object) -> None:
        if any(not tensor.isfinite().all() for tensor in _floats(output)):
            layers.append((names[layer], layer))

    hooks = [layer.register_forward_hook(inspect) for layer in names]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()


def _floats(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _floats(part)
