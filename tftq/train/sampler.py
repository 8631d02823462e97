"""The order in which training sees its windows: a permutation of its own for every epoch, resumable at any update."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Sampler:
    """Shuffles windows and cuts them into the groups that one update each is computed from.

    Args:
        windows: how many there are.
        group: windows to one update; the last group of an epoch holds what is left.
        seed: of the permutations; the order of an epoch depends on (seed, epoch) and on nothing else.
    """

    def __init__(self, windows: int, group: int, seed: int) -> None:
        assert windows >= 1 and group >= 1
        self.windows, self.group, self.seed = windows, group, seed

    @property
    def groups_per_epoch(self) -> int:
        """Groups, and so attempted updates, of one epoch."""
        return math.ceil(self.windows / self.group)

    def groups(self, epoch: int, position: int = 0) -> Iterator[Tensor]:
        """The groups of an epoch from number `position` on, each an int64 tensor of window indices."""
        order = torch.from_numpy(np.random.default_rng([self.seed, epoch]).permutation(self.windows))
        yield from order.split(self.group)[position:]
