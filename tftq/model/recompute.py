"""Drop a block's intermediate tensors after the forward pass, and compute them again for the backward pass."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

_thread = threading.local()  # autograd computes again in threads of its own


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function and keep only its arguments, none of its intermediate tensors, for the backward pass.

    Same numbers, dropout masks included, at the cost of a second forward pass of the block. Without autograd nothing is kept anyway, and
    the function is merely called.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=_contexts)


def recomputing() -> bool:
    """Return whether a block is now being recomputed, so that observers have seen its values already."""
    return getattr(_thread, "recomputing", False)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _second_time(bool(torch.backends.mkldnn.enabled))


@contextmanager
def _second_time(with_onednn: bool) -> Iterator[None]:
    """Set `recomputing`, and the kernels of the first pass: torch restores autocast itself, but not these."""
    before, _thread.recomputing = recomputing(), True
    kernels = torch.backends.mkldnn.set_flags(_enabled=with_onednn, _fp32_precision=None)[0]
    try:
        yield
    finally:
        _thread.recomputing = before
        torch.backends.mkldnn.set_flags(_enabled=kernels, _fp32_precision=None)
