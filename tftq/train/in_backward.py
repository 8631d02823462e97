"""Apply and free each gradient as soon as the backward pass has it: no two large gradients live at once."""

from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tftq.errors import OutOfMemoryError


class AppliedInBackward:
    """Steps an optimizer during the backward pass, parameter by parameter.

    The update is the one that `optimizer.step()` would have computed from all gradients, since AdamW looks at one parameter at a time.
    Clipping and loss scaling, which need all gradients at once, are not possible; nor is a sum over several backward passes.

    Args:
        optimizer: its parameters get the hooks; learning rates must be set before the backward pass.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._norms: list[Tensor] = []
        self._group = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        for parameter in self._group:
            parameter.register_post_accumulate_grad_hook(self._apply)

    def take_norm(self, device: torch.device) -> Tensor:
        """Return the norm of all gradients applied since the last call, a scalar on `device`."""
        norms, self._norms = self._norms, []
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), device=device)

    def refuse_retry(self, where: str, reason: str) -> NoReturn:
        """End a training whose backward pass ran out of memory: parts of the update have been applied.

        Args:
            where: the place in the training, for the message.
            reason: the allocator's message.

        Raises:
            OutOfMemoryError: always.
        """
        raise OutOfMemoryError(
            f"{where}: out of memory ({reason}); train.optimizer.in_backward forwards all windows of an update at once and applies "
            "gradients before all are there, so that nothing can be tried again: lower train.batch_size"
        )

    def _apply(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self._norms.append(torch.linalg.vector_norm(parameter.grad))
        groups = self._optimizer.param_groups
        self._optimizer.param_groups = [{**self._group[parameter], "params": [parameter]}]  # with the current learning rate
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = groups
        parameter.grad = None
