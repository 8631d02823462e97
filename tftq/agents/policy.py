"""Policies: a plain network with its scaling inside, from raw history and the position held to a score of each position."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tftq.agents.rewards import POSITIONS, Scores
from tftq.data.scaling import ColumnScaling
from tftq.evaluate.windows import evaluating
from tftq.model.scaling import InputScaling
from tftq.spec.inputs import Inputs


class Observations(NamedTuple):
    """The inputs of a policy, float32: history [batch, lookback, columns] raw, and the position held [batch, 1]."""

    history: Tensor
    position: Tensor

    @property
    def named(self) -> dict[str, Tensor]:
        """Return the tensors by the names of a policy's inputs, in their order."""
        return self._asdict()

    def some(self, indices: Tensor) -> "Observations":
        """Select those at `indices`, in that order."""
        return Observations(self.history[indices], self.position[indices])


class ScaledObservation(nn.Module):
    """One row of numbers of size one: the scaled history, bar after bar, and the position held.

    Args:
        scaling: of the history's columns, fitted on the training part.
    """

    def __init__(self, scaling: ColumnScaling) -> None:
        super().__init__()
        self.scaling = InputScaling(scaling)

    def forward(self, history: Tensor, position: Tensor) -> Tensor:
        """Args: history [batch, lookback, columns] raw, position [batch, 1]. Returns: [batch, lookback · columns + 1]."""
        return torch.cat([self.scaling(history).flatten(1), position], dim=1)


class Policy(nn.Module):
    """A network that scores every position.

    Args:
        inputs: the columns and the lookback.
        scaling: of the history's columns, fitted on the training part.
        layers: from the scaled observation to the scores.

    Attributes:
        kept_float: none of its layers stays in floating point where it is quantized.
    """

    kept_float: tuple[str, ...] = ()

    def __init__(self, inputs: Inputs, scaling: ColumnScaling, layers: nn.Sequential) -> None:
        super().__init__()
        self.inputs = inputs
        self.observation = ScaledObservation(scaling)
        self.layers = layers

    def forward(self, history: Tensor, position: Tensor) -> Tensor:
        """Score the positions.

        Args:
            history: raw rows of the last bars [batch, lookback, columns].
            position: the current one [batch, 1].

        Returns:
            [batch, 3], of `POSITIONS`: their values (DQN) or the logits of their probabilities (PPO); the highest is chosen.
        """
        scores: Tensor = self.layers(self.observation(history, position))
        return scores


def scores_of(policy: Policy) -> Scores:
    """Return a function that scores as the policy serves, on its device, without autograd; its mode stays as it is."""

    def scores(history: Tensor, position: Tensor) -> Tensor:
        device = policy.observation.scaling.center.device
        with evaluating(policy), torch.no_grad():
            found: Tensor = policy(history.to(device), position.to(device)).cpu()
        return found

    return scores


def observation_size(inputs: Inputs) -> int:
    """Return how many numbers a policy takes at once."""
    return inputs.lookback * len(inputs.history) + 1


def layer_sizes(inputs: Inputs, hidden: Sequence[int], outputs: int = len(POSITIONS)) -> list[tuple[int, int]]:
    """List the inputs and outputs of each linear layer of a network.

    Args:
        inputs: the columns and the lookback.
        hidden: the widths between.
        outputs: of the last layer.
    """
    return list(pairwise([observation_size(inputs), *hidden, outputs]))
