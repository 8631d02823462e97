"""Trading as a gymnasium environment: raw windows and the position held in, a position out, the next bar's return as the reward."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tftq.agents.rewards import POSITIONS, Rewards
from tftq.data.windows import Windows

Observation = dict[str, np.ndarray]
LARGEST = float(np.finfo(np.float32).max)


class TradingEnvironment(gymnasium.Env[Observation, np.int64]):
    """One run of windows a bar apart is an episode; it ends with the run, and none straddles a gap, a session break or a contract.

    An observation is the state at the close of bar t: `history`, the raw rows of the last `lookback` bars, and `position`, the one
    held. The action is the position from there to the close of bar t+1, which earns `Rewards.of`. The market continues after the last bar
    of a run, only unseen, so that an episode is truncated there and never terminated.

    Args:
        windows: of bars.
        rewards: of the same windows.

    Attributes:
        windows: as given.
        window: the last one observed; one past the run where its last bar was traded.
    """

    def __init__(self, windows: Windows, rewards: Rewards) -> None:
        self.windows, self._rewards = windows, rewards
        shape = (windows.inputs.lookback, len(windows.inputs.history))
        self.observation_space = spaces.Dict(
            {"history": spaces.Box(-LARGEST, LARGEST, shape, np.float32), "position": spaces.Box(-1.0, 1.0, (1,), np.float32)}
        )
        self.action_space = spaces.Discrete(len(POSITIONS))
        self.window = self._stop = 0
        self._held = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, flat: a run drawn at random, the longer the likelier, or that of number `options["run"]`."""
        super().reset(seed=seed)
        runs = self._rewards.runs
        if options is None or "run" not in options:
            lengths = np.array([stop - start for start, stop in runs])
            number = int(self.np_random.choice(len(runs), p=lengths / lengths.sum()))
        else:
            number = options["run"]
        self.window, self._stop = runs[number]
        self._held = 0
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one of `POSITIONS` for a bar; see `gymnasium.Env.step`."""
        position = POSITIONS[int(action)]
        reward = self._rewards.of(self.window, position, self._held)
        self._held = position
        self.window += 1
        return self._observation(), reward, False, self.window == self._stop, self._info()

    def _observation(self) -> Observation:
        """Return the observation at the close of the bar; after the last window of a run, that of the bar whose return was earned."""
        history = self.windows.history(np.array([self._last_row]))[0]
        return {"history": history, "position": np.array([self._held], np.float32)}

    def _info(self) -> dict[str, Any]:
        return {"row": self._last_row}

    @property
    def _last_row(self) -> int:
        first = self.window if self.window < self._stop else self.window - 1
        return int(self.windows.starts[first]) + self.windows.inputs.lookback - 1 + self.window - first
