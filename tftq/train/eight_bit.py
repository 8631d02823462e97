"""AdamW with moments in 8 bits; a module of its own, since torchao takes seconds to import."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

# At import torchao reports which of its CUDA kernels do not load, and torch how torchao registers a constant: none of it is used here.
_loggers = {logger: logger.level for logger in map(logging.getLogger, ("torchao", "torch.utils._pytree"))}
for _logger in _loggers:
    _logger.setLevel(logging.ERROR)
try:
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import get_qmap_signed, get_qmap_unsigned
finally:
    for _logger, _level in _loggers.items():
        _logger.setLevel(_level)

# The values that 8-bit codes stand for are computed once and kept; from fake tensors, while a plan is made, they cannot be.
with unset_fake_temporarily():
    get_qmap_signed()
    get_qmap_unsigned()


class EagerAdamW8bit(AdamW8bit):
    """torchao's AdamW with 8-bit moments (Dettmers et al. 2021, arXiv 2110.02861), run as it is written.

    torchao compiles its step, which needs a compiler on the user's machine and takes most of a minute there.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As `Optimizer.step`."""
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)
