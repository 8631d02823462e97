"""Predicts the peak of a training step without any memory, by running it on fake tensors."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tftq.memory.components import state_tensors
from tftq.memory.counter import ByteCounter

_PAGE = 4096  # bytes


@dataclass(frozen=True)
class PlannedPeak:
    """The most bytes of tensors at once, and what they are at that moment.

    `components` has parameters (all that lives after building), gradients, optimizer, workspace (of the LSTM), and activations: the rest.
    """

    peak_bytes: int
    components: dict[str, int]


def planned_peak(make_step: Callable[[], Callable[[], object]]) -> PlannedPeak:
    """Build a model and train it for two updates on fake tensors: the first makes the optimizer's state, the second has it all.

    Equal to the byte for what an update allocates in FP32 tensors on the CPU, LSTM included. Not predicted: the workspace of cuDNN's
    LSTM, the temporaries within a kernel, the allocator's rounding, the context of CUDA.

    Args:
        make_step: builds everything and returns a function that computes one update. Both run under `FakeTensorMode`: no values, so no
            `.item()`, and no tensors made before.

    Returns:
        the peak, in bytes.
    """
    with FakeTensorMode(), _LabellingCounter() as counter:
        step = make_step()
        counter.label_everything("parameters")
        handle = register_optimizer_step_post_hook(counter.label_training)
        try:
            step()
            first_peak = counter.peak_bytes
            counter.reset_peak()
            step()
        finally:
            handle.remove()
            counter.remove_hooks()
    peak = max(first_peak, counter.peak_bytes)
    labelled = {name: counter.at_peak[name] for name in ("parameters", "gradients", "optimizer", "workspace")}
    return PlannedPeak(peak, {**labelled, "activations": peak - sum(labelled.values())})


class _LabellingCounter(ByteCounter):
    """A byte counter that knows what some of its storages are for, and what was live by label when the peak was reached."""

    def __init__(self) -> None:
        super().__init__()
        self.at_peak: Counter[str] = Counter()
        self._by_label: Counter[str] = Counter()
        self._labelled: set[int] = set()
        self._hooks: dict[Tensor, torch.utils.hooks.RemovableHandle] = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self.peak_bytes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.mkldnn_rnn_layer.default and args[-1]:  # training
            rows, hidden = args[0].shape[:2], args[10]
            self._label(result[3], "workspace", lstm_workspace_bytes(rows[0], rows[1], hidden))
        if self.peak_bytes > before:
            self.at_peak = self._by_label.copy()
        return result

    def reset_peak(self) -> None:
        """Let the peak begin again at what is live now."""
        super().reset_peak()
        self.at_peak = self._by_label.copy()

    def label_everything(self, label: str) -> None:
        """Label what is live now."""
        for reference in list(self._live.values()):
            storage = reference()
            assert storage is not None
            self._label_storage(storage, label, reference.size)

    def label_training(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """After a step: label the optimizer's state, and each gradient as soon as it is there in the next update."""
        for tensor in state_tensors(optimizer):
            self._label(tensor, "optimizer")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._hooks:
                    self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._label_gradient)

    def remove_hooks(self) -> None:
        """Leave the parameters as they were."""
        for hook in self._hooks.values():
            hook.remove()

    def _label_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._label(parameter.grad, "gradients")

    def _label(self, tensor: Tensor, label: str, further: int = 0) -> None:
        if further:
            self.add_bytes(tensor, further)
        storage = tensor.untyped_storage()
        self._label_storage(storage, label, storage.nbytes() + further)

    def _label_storage(self, storage: torch.UntypedStorage, label: str, size: int) -> None:
        key = storage._cdata
        if key not in self._labelled:
            self._labelled.add(key)
            self._by_label[label] += size
            weakref.finalize(storage, self._unlabel, key, label, size)

    def _unlabel(self, key: int, label: str, size: int) -> None:
        self._labelled.discard(key)
        self._by_label[label] -= size


def lstm_workspace_bytes(steps: int, batch: int, hidden: int) -> int:
    """What oneDNN keeps from the forward to the backward pass of one LSTM layer in one direction, in FP32, which fake tensors report as 0.

    Gates of every step; outputs, and both gradients of them, at both ends of the layer and for one step more; the same for cells and
    their gradient, without padding; and what the projection of a layer would take. Each starts on a page. Fitted to what
    `aten::mkldnn_rnn_layer` returns in torch 2.13, and exact for it.
    """
    rows, states = steps * batch, 2 * (steps + 1) * batch
    floats = [rows * _padded(4 * hidden), *[states * _padded(hidden)] * 3, *[states * hidden] * 2, rows * _padded(hidden)]
    return sum(-(-4 * count // _PAGE) * _PAGE for count in floats)


def _padded(width: int) -> int:
    """A row's length in floats: whole cache lines, and one more where rows would otherwise fall on the same lines of the cache."""
    lines = -(-width // 16) * 16
    return lines + 16 if lines % 256 == 0 else lines
