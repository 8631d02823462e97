"""Keeping the optimizer's state off the device while it is not needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from tftq.train.oom import explained


@contextmanager
def offloaded(optimizer: Optimizer) -> Iterator[None]:
    """Hold the optimizer's state in host memory, and put it back bit for bit, step counters included.

    The state stays complete meanwhile, so it can be saved; a step is refused, for it would mix devices.

    Args:
        optimizer: any optimizer whose state lies in tensors.

    Raises:
        RuntimeError: at a step taken meanwhile.
        OutOfMemoryError: something else took the room that the state left; a step stays refused, since part of the state is away.
    """

    def refuse(*_: object) -> None:
        raise RuntimeError("the optimizer's state is off its device during validation; step before or after it")

    states = list(optimizer.state.values())
    homes = [(state, name, value.device) for state in states for name, value in state.items() if isinstance(value, Tensor)]
    hook = optimizer.register_step_pre_hook(refuse)
    try:
        for state, name, _ in homes:
            state[name] = state[name].to("cpu", copy=True)
        yield
    finally:
        with explained("the optimizer's state does not fit back onto its device; set validate.offload_optimizer to never, or free memory"):
            for state, name, device in homes:
                state[name] = state[name].to(device)
        hook.remove()
