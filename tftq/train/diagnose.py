"""Stop a training at the first loss or gradient that is not finite, and report where it comes from."""

import math
from collections.abc import Iterable

from torch import nn

from tftq.errors import NonFiniteError
from tftq.evaluate.diagnose import find_non_finite
from tftq.evaluate.precision import Precision
from tftq.model.batch import Batch


def require_finite(loss: float, norm: float, model: nn.Module, batches: Iterable[Batch], precision: Precision, where: str) -> None:
    """Refuse a loss or a gradient norm that is not finite.

    Args:
        loss: of an update's windows.
        norm: of their gradients.
        model: the trained model, with its gradients.
        batches: the windows on the model's device; only used where the loss is not finite.
        precision: of training.
        where: the place in the training, for the message.

    Raises:
        NonFiniteError: names the data, layer or parameters at fault.
    """
    if not math.isfinite(loss):
        with precision.autocast():
            reasons = [reason for batch in batches if (reason := find_non_finite(model, batch))]
        reason = reasons[0] if reasons else "every layer's output is finite when the batch is run again"
        raise NonFiniteError(f"{where}: the training loss is {loss}: {reason}; look at that, or lower train.optimizer.lr")
    if not math.isfinite(norm):
        names = ", ".join((not_finite_gradients(model) or not_finite_weights(model))[:5])
        raise NonFiniteError(f"{where}: the loss is finite, the gradients of {names} are not; lower train.optimizer.lr")


def not_finite_gradients(model: nn.Module) -> list[str]:
    """List the names of the parameters whose gradient is not finite."""
    return [name for name, parameter in model.named_parameters() if parameter.grad is not None and not parameter.grad.isfinite().all()]


def not_finite_weights(model: nn.Module) -> list[str]:
    """List the names of the parameters that are not finite themselves, as after applying such a gradient."""
    return [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
