"""Recognize out-of-memory errors, retry with less, and advise where no retry is left."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import TypeVar

import torch

from tftq.errors import OutOfMemoryError, TftqError
from tftq.quant.quantizers import ActivationQuantizer
from tftq.train.checkpoint import random_state, restore_random_state

Result = TypeVar("Result")

# Parts, in lower case, of the messages of failed allocators, beside the exception types for it.
_MESSAGES = (
    "out of memory",  # the allocator's and the driver's own, of CUDA, ROCm, XPU and MPS
    "_alloc_failed",  # CUBLAS_STATUS_, CUDNN_STATUS_, CUSPARSE_STATUS_, CUSOLVER_STATUS_
    "_allocation_failed",  # CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ and _HOST_
    "nvml_success == r internal assert failed",  # while the allocator asks NVML for its message, under MIG
    "can't allocate memory",  # DefaultCPUAllocator
    "not enough memory",  # DefaultCPUAllocator on Windows
    "cannot allocate memory",  # the operating system
    "bad_alloc",  # C++
    "bad allocation",  # C++ on Windows
)


def out_of_memory(error: BaseException) -> str | None:
    """Return the allocator's message of an out-of-memory error, wrapped or not; None for any other error.

    An error of tftq counts as another: its message already gives advice.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and not isinstance(link, TftqError):
        seen.add(id(link))
        if _says_so(link):
            return shorten(f"{type(link).__name__}: {link}", 160, placeholder=" …")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None


def _says_so(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error).lower() for words in _MESSAGES)


def until_it_fits(work: Callable[[], Result], give_way: Callable[[str], None], device: torch.device) -> Result:
    """Do some work, and repeat it with less until memory suffices.

    Args:
        work: the work; starts anew at each call.
        give_way: called with the allocator's message after an attempt that ran out of memory, when its tensors are free; undoes
            the attempt, and makes the next one need less, or raises where it cannot.
        device: the device whose unused memory is released in between.
    """
    while True:
        try:
            return work()
        except Exception as error:
            reason = out_of_memory(error)
            if reason is None:
                raise
        # Outside the handler: the error is freed here, and with it the frames that held the tensors of the attempt.
        gc.collect()  # tensors held by reference cycles
        give_way(reason)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def halve(tried: int, first: int, where: str, reason: str) -> tuple[int, str]:
    """Halve the windows of a forward pass that ran out of memory in training.

    Args:
        tried: windows that were forwarded.
        first: the recipe's batch size.
        where: the place in the training, for the message.
        reason: the allocator's words.

    Returns:
        Windows to forward next, and a message about it.

    Raises:
        OutOfMemoryError: it was one window.
    """
    if tried == 1:
        raise OutOfMemoryError(
            f"{where}: out of memory with one window to a forward pass, after {first} at first ({reason}); "
            "lower model.hidden, a TFT's model.knots or data.lookback, train in fp16 or bf16, or free memory that others hold"
        )
    return tried // 2, (
        f"{where}: out of memory with {tried} windows to a forward pass ({reason}); continuing with {tried // 2}, "
        "an update is still computed from as many windows"
    )


@contextmanager
def explain_out_of_memory(words: str) -> Iterator[None]:
    """Replace an out-of-memory error by one with the message `words`, where nothing can be retried.

    Raises:
        OutOfMemoryError: memory ran out within.
    """
    try:
        yield
    except Exception as error:
        reason = out_of_memory(error)
        if reason is None:
            raise
        raise OutOfMemoryError(f"{words} ({reason})") from error


class Snapshot:
    """The state, beside the gradients, that computing them changes: random generators, and the ranges that quantizers observe.

    Ranges of weights are left out: they follow from the weights.
    """

    def __init__(self, quantizers: Sequence[ActivationQuantizer]) -> None:
        self._random = random_state()
        observing = [quantizer for quantizer in quantizers if quantizer.observing]
        self._ranges = [(buffer, buffer.clone()) for quantizer in observing for buffer in quantizer.buffers()]

    def restore(self) -> None:
        """Restore the state."""
        restore_random_state(self._random)
        for buffer, before in self._ranges:
            buffer.copy_(before)
