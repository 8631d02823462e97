"""A byte counter that labels storages by their purpose, now and at the peak."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tftq.memory.components import state_tensors, storages
from tftq.memory.counter import ByteCounter
from tftq.memory.lstm import lstm_workspace_bytes

LABELS = ("parameters", "gradients", "optimizer", "workspace")


class LabellingCounter(ByteCounter):
    """Counts bytes, and which of them are parameters, gradients, optimizer state and the LSTM's workspace.

    The workspace, which fake tensors report as empty, is counted in closed form for them.

    Args:
        device: as for `ByteCounter`.
        rounding: as for `ByteCounter`.
    """

    def __init__(self, device: str | None = None, *, rounding: int = 1) -> None:
        super().__init__(device, rounding=rounding)
        self._by_label: Counter[str] = Counter()
        self._at_peak: Counter[str] = Counter()
        self._labelled: set[int] = set()
        self._hooks: dict[Tensor, torch.utils.hooks.RemovableHandle] = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self.peak_bytes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.mkldnn_rnn_layer.default and args[-1]:  # training
            self._count_workspace(result[3], args[0], hidden=args[10])
        if self.peak_bytes > before:
            self._at_peak = self._by_label.copy()
        return result

    @property
    def labelled(self) -> dict[str, int]:
        """Return the bytes that are live now, by label."""
        return {label: self._by_label[label] for label in LABELS}

    @property
    def labelled_at_peak(self) -> dict[str, int]:
        """Return the bytes that were live at the peak, by label; the rest of the peak is activations and leftovers."""
        return {label: self._at_peak[label] for label in LABELS}

    def reset_peak(self) -> None:
        """Reset the peak to the bytes that are live now."""
        super().reset_peak()
        self._at_peak = self._by_label.copy()

    def track(self, tensors: Iterable[Tensor], label: str | None = None) -> None:
        """Count tensors that existed before, see `ByteCounter.track`, and label them."""
        tensors = list(tensors)
        super().track(tensors)
        if label is not None:
            for storage in storages(tensors):
                self._label(storage, label)

    def label_everything(self, label: str) -> None:
        """Label the storages that are live now."""
        for reference in list(self._live.values()):
            storage = reference()
            assert storage is not None
            self._label(storage, label)

    @contextmanager
    def labelling(self, model: nn.Module | None = None) -> Iterator[None]:
        """Label the gradients of a model, and the state of any optimizer that steps within, and its gradients from then on."""
        self._follow([] if model is None else model.parameters())
        handle = register_optimizer_step_post_hook(self._label_step)
        try:
            yield
        finally:
            handle.remove()
            for hook in self._hooks.values():
                hook.remove()
            self._hooks.clear()

    def _follow(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._label_gradient)

    def _label_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self.label_state(optimizer)

    def label_state(self, optimizer: Optimizer) -> None:
        """Label an optimizer's state, and follow the gradients of its parameters."""
        for group in optimizer.param_groups:
            for storage in storages(state_tensors(optimizer, group["params"])):
                self._label(storage, "optimizer")
            self._follow(group["params"])

    def _label_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:  # a hook before this one may have used and freed it
            self._label(parameter.grad.untyped_storage(), "gradients")

    def _count_workspace(self, workspace: Tensor, rows: Tensor, *, hidden: int) -> None:
        storage = workspace.untyped_storage()
        if not storage.nbytes():
            self.add_bytes(workspace, lstm_workspace_bytes(rows.shape[0], rows.shape[1], hidden, rows.dtype))
        self._label(storage, "workspace")

    def _label(self, storage: torch.UntypedStorage, label: str) -> None:
        key = storage._cdata
        if key in self._live and key not in self._labelled:
            self._labelled.add(key)
            size = self._live[key].size
            self._by_label[label] += size
            weakref.finalize(storage, self._unlabel, key, label, size)

    def _unlabel(self, key: int, label: str, size: int) -> None:
        self._labelled.discard(key)
        self._by_label[label] -= size
