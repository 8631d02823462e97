"""Dropping a block's intermediate tensors after the forward pass, and computing them again where the backward pass wants them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

_thread = threading.local()  # autograd computes again in threads of its own


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; of what led to it, only its arguments are kept for the backward pass.

    Same numbers, dropout masks included, at the price of a second forward pass of the block. Without autograd nothing is kept anyway, and
    the function is merely called.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=_contexts)


def recomputing() -> bool:
    """Whether a block is now computed for the second time: whatever learns from what passes through has learned from it already."""
    return getattr(_thread, "recomputing", False)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _second_time(bool(torch.backends.mkldnn.enabled))


@contextmanager
def _second_time(with_onednn: bool) -> Iterator[None]:
    """What `recomputing` tells, and the kernels of the first time: autocast is remembered by torch itself, this is not."""
    before, _thread.recomputing = recomputing(), True
    kernels = torch.backends.mkldnn.set_flags(_enabled=with_onednn, _fp32_precision=None)[0]
    try:
        yield
    finally:
        _thread.recomputing = before
        torch.backends.mkldnn.set_flags(_enabled=kernels, _fp32_precision=None)
