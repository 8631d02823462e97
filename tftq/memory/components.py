"""The bytes that training holds between two updates: parameters, gradients and optimizer state."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer


class Components(NamedTuple):
    """Bytes of tensors, each storage once."""

    parameters: int  # buffers included
    gradients: int
    optimizer: int


def component_bytes(model: nn.Module, optimizer: Optimizer | None = None, *, device: str | None = None) -> Components:
    """Count the bytes of a model, its gradients and its optimizer state.

    Args:
        model: its parameters, buffers and gradients are counted.
        optimizer: its state is counted; 0 bytes without one, or before its first step.
        device: count only tensors on this device type, such as "cuda"; None counts all.
    """
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return Components(
        parameters=storage_bytes([*parameters, *model.buffers()], device=device),
        gradients=storage_bytes(gradients, device=device),
        optimizer=0 if optimizer is None else storage_bytes(state_tensors(optimizer), device=device),
    )


def storage_bytes(tensors: Iterable[Tensor], *, device: str | None = None) -> int:
    """Count the bytes of tensors' storages, shared ones once; of a tensor made of tensors, its parts'; on one device or all."""
    found = (storage for storage in storages(tensors) if device is None or storage.device.type == device)
    return sum({storage._cdata: storage.nbytes() for storage in found}.values())


def storages(tensors: Iterable[Tensor]) -> Iterator[UntypedStorage]:
    """Yield the storage of each tensor, or of each part of a tensor made of tensors."""
    return (part.untyped_storage() for tensor in tensors for part in _parts(tensor))


def state_tensors(optimizer: Optimizer, parameters: Iterable[Tensor] | None = None) -> list[Tensor]:
    """Yield every tensor in an optimizer's state, or in its state of some parameters."""
    states = optimizer.state.values() if parameters is None else (optimizer.state.get(parameter) for parameter in parameters)
    return list(_tensors(list(states)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor
