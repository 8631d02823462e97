"""AdamW with moments in 8 bits; a module of its own, since torchao takes seconds to import."""

import logging
from collections.abc import Callable
from typing import Any

import torch

# At import torchao reports which of its CUDA kernels do not load, and torch how torchao registers a constant: none of it is used here.
_loggers = {logger: logger.level for logger in map(logging.getLogger, ("torchao", "torch.utils._pytree"))}
for _logger in _loggers:
    _logger.setLevel(logging.ERROR)
try:
    from torchao.optim import AdamW8bit
finally:
    for _logger, _level in _loggers.items():
        _logger.setLevel(_level)


class EagerAdamW8bit(AdamW8bit):
    """torchao's AdamW with 8-bit moments (Dettmers et al. 2021, arXiv 2110.02861), run as it is written.

    torchao compiles its step, which needs a compiler on the user's machine and takes most of a minute there.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As `Optimizer.step`."""
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)
