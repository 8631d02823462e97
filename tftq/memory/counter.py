"""Count the bytes of live tensors on any device, real or fake, by watching every operator and every storage."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operators that return an unseen storage, though their schema calls the result an alias: a new tensor from Python data,
# a copy made storage by storage (deepcopy, unpickling), a storage that changes its size.
_ATTACHING = frozenset({"aten::lift_fresh", "aten::set_", "aten::resize_", "aten::resize_as_"})


class _StorageReference(weakref.ref[torch.UntypedStorage]):
    """Notifies its counter when the last tensor of a storage is gone."""

    __slots__ = ("key", "nbytes", "size")

    key: int
    nbytes: int  # of the storage itself
    size: int  # its counted bytes: nbytes, rounded up, and those added

    def __init__(self, storage: torch.UntypedStorage, released: Callable[["_StorageReference"], None]) -> None:
        super().__init__(storage, released)  # type: ignore[call-arg]  # the callback is typed for plain references
        self.key = storage._cdata
        self.nbytes = self.size = storage.nbytes()


class ByteCounter(TorchDispatchMode):
    """Counts the bytes of the storages that operators create while it is entered, each once, until their last tensor is gone.

    Exact for tensors: views, in-place operators, saved activations, gradients and optimizer state, all threads of autograd. It does not
    see what a kernel allocates and frees within one operator, nor the allocator's rounding. Enter it inside a
    `FakeTensorMode` to count without any memory. Memory that numpy owns (`torch.from_numpy`) is not counted.

    Args:
        device: count this device type alone, such as "cuda"; None counts every device but "meta".
        rounding: count a multiple of so many bytes for each storage, as an allocator hands them out.
    """

    live_bytes: int
    peak_bytes: int

    def __init__(self, device: str | None = None, *, rounding: int = 1) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._device, self._rounding = device, rounding
        self._live: dict[int, _StorageReference] = {}
        self._creates: dict[Any, bool] = {}  # operator -> whether its results may be new storages

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        creates = self._creates.get(func)
        if creates is None:
            creates = self._creates[func] = _creates_storage(func)
        if creates:
            self._count(result)
        return result

    def track(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before the counter was entered; a storage that is counted already stays counted once."""
        for tensor in tensors:
            self._count(tensor)

    def reset_peak(self) -> None:
        """Reset the peak to the bytes that are live now."""
        self.peak_bytes = self.live_bytes

    def add_bytes(self, tensor: Tensor, size: int) -> None:
        """Count `size` further bytes for as long as the storage of `tensor`, which is counted already, lives."""
        size = self._rounded(size)
        self._live[tensor.untyped_storage()._cdata].size += size
        self._grow(size)

    def _grow(self, size: int) -> None:
        self.live_bytes += size
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes

    def _count(self, result: Any) -> None:
        if isinstance(result, Tensor):
            self._count_tensor(result)
        elif isinstance(result, list | tuple):
            for part in result:
                self._count(part)

    def _count_tensor(self, tensor: Tensor) -> None:
        if type(tensor) is not Tensor and hasattr(tensor, "__tensor_flatten__"):  # made of tensors, as quantized ones; itself empty
            for name in tensor.__tensor_flatten__()[0]:
                self._count(getattr(tensor, name))
            return
        if tensor.is_meta or (self._device is not None and tensor.device.type != self._device):
            return
        storage = tensor.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None:
            reference = _StorageReference(storage, self._released)
            reference.size = self._rounded(reference.nbytes)
            self._live[reference.key] = reference
            self._grow(reference.size)
        elif storage.nbytes() != known.nbytes:
            growth = self._rounded(storage.nbytes()) - self._rounded(known.nbytes)
            known.nbytes, known.size = storage.nbytes(), known.size + growth
            self._grow(growth)

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._rounding) * self._rounding

    def _released(self, reference: _StorageReference) -> None:
        del self._live[reference.key]
        self.live_bytes -= reference.size


def _creates_storage(func: Any) -> bool:
    """Return whether an operator may return a new storage, not only its inputs or views of them."""
    schema = func._schema
    return schema.name in _ATTACHING or any(result.alias_info is None for result in schema.returns)
