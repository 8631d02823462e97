"""Cross-layer equalization: hidden units of like ranges, so that one scale serves them all (Nagel et al. 2019, arXiv 1906.04721)."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

SMALLEST = 1e-3  # of the largest range: a unit that is hardly ever active is not scaled up to the others'


@torch.no_grad()
def equalize(layers: Sequence[nn.Module], batches: Iterable[Tensor]) -> None:
    """Bring the ranges of the hidden units of a network of linear layers with ReLU between them nearer to each other, in place.

    A unit is divided by the square root of its range among its layer's, and the weights that read it are multiplied by that. ReLU lets such
    a factor through, so that the network's function stays the same; the square root keeps the weights' own ranges even.

    Args:
        layers: in order, linear layers and ReLUs by turns.
        batches: inputs of the first one, [batch, inputs] each.
    """
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert all(isinstance(layer, nn.ReLU) for layer in layers[1::2]) and len(linear) == (len(layers) + 1) // 2
    ranges = [torch.zeros(layer.out_features) for layer in linear[:-1]]
    for x in batches:
        for layer, highest in zip(linear, ranges, strict=False):  # the last one has no hidden units
            x = layer(x).relu()
            torch.maximum(highest, x.amax(0), out=highest)
    for before, after, highest in zip(linear, linear[1:], ranges, strict=False):
        if highest.max() == 0:  # no unit was ever active
            continue
        factor = (highest / highest.max()).clamp(min=SMALLEST).sqrt()
        before.weight.div_(factor[:, None])
        if before.bias is not None:
            before.bias.div_(factor)
        after.weight.mul_(factor)
