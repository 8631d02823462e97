"""The order of windows in training: a new permutation for every epoch, resumable at any update."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Sampler:
    """Shuffles windows and splits them into groups, one per update.

    Args:
        windows: how many there are.
        group: windows per update; the last group of an epoch holds the rest.
        seed: of the permutations; the order of an epoch depends on (seed, epoch) alone.
    """

    def __init__(self, windows: int, group: int, seed: int) -> None:
        assert windows >= 1 and group >= 1
        self.windows, self.group, self.seed = windows, group, seed

    @property
    def groups_per_epoch(self) -> int:
        """Count the groups, and so attempted updates, of one epoch."""
        return math.ceil(self.windows / self.group)

    def groups(self, epoch: int, position: int = 0) -> Iterator[Tensor]:
        """Yield the groups of an epoch from number `position` on, each an int64 tensor of window indices."""
        order = torch.from_numpy(np.random.default_rng([self.seed, epoch]).permutation(self.windows))
        yield from order.split(self.group)[position:]
