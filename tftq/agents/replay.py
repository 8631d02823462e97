"""A replay buffer of rows instead of windows: each transition keeps its row, and shares the observed rows with all others."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from tftq.agents.rewards import POSITIONS
from tftq.data.windows import Windows

TRANSITION = np.dtype([("row", np.int64), ("held", np.int8), ("action", np.int8), ("reward", np.float32)])


class WindowReplayBuffer(BaseBuffer):
    """The transitions of one `TradingEnvironment`, fourteen bytes each; histories are gathered from the rows when they are sampled.

    No transition ends an episode for good, see `TradingEnvironment`: the value of the next state always counts.

    Args:
        buffer_size: transitions that are kept, the newest.
        observation_space, action_space, device, n_envs, optimize_memory_usage: as Stable-Baselines3 gives them; one environment.
        windows: those of the environment.
    """

    pos: int
    full: bool

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        *,
        windows: Windows,
    ) -> None:
        assert n_envs == 1 and not optimize_memory_usage
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        self._windows = windows
        self._transitions = np.zeros(buffer_size, TRANSITION)

    def add(
        self,
        obs: dict[str, np.ndarray],
        next_obs: dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Store a transition, in place of the oldest where the buffer is full; the arguments are those of one environment in a batch."""
        self._transitions[self.pos] = infos[0]["row"] - 1, obs["position"].item(), action.item(), reward.item()
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> DictReplayBufferSamples:
        chosen = self._transitions[batch_inds]
        actions = torch.from_numpy(chosen["action"].astype(np.int64))
        return DictReplayBufferSamples(
            observations=self._observations(chosen["row"], torch.from_numpy(chosen["held"].astype(np.float32))),
            actions=actions[:, None].to(self.device),
            next_observations=self._observations(chosen["row"] + 1, torch.tensor(POSITIONS, dtype=torch.float32)[actions]),
            dones=torch.zeros(len(chosen), 1, device=self.device),
            rewards=torch.from_numpy(chosen["reward"].copy())[:, None].to(self.device),
        )

    def _observations(self, rows: np.ndarray, position: torch.Tensor) -> dict[str, torch.Tensor]:
        history = torch.from_numpy(self._windows.history(rows))
        return {"history": history.to(self.device), "position": position[:, None].to(self.device)}
