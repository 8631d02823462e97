"""Validation during training: its device, its batches, and the place of the optimizer's state meanwhile."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tftq.errors import OutOfMemoryError
from tftq.evaluate.metrics import Validation
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import validate
from tftq.model.batch import WindowSource
from tftq.model.forecaster import Forecaster
from tftq.train.log import TrainingBar
from tftq.train.oom import explain_out_of_memory, until_it_fits
from tftq.train.stages import StageSettings

Model = TypeVar("Model", bound=Forecaster)
CPU = torch.device("cpu")


class Validator:
    """Validates a model during its training, and remembers which settings fit into memory.

    Where memory runs out a validation starts again: first without the optimizer's state on the device, then in halved batches, at last on
    the CPU; the first and the last only where the recipe has `auto`. Later validations begin with the settings that fit.

    Args:
        model: the model in training.
        windows: to forecast.
        settings: of the stage of training.
        precision: the format and device of training.
        optimizer: its state can leave the device.
        announce: called with a message on every step taken for lack of memory.
    """

    def __init__(
        self,
        model: Forecaster,
        windows: WindowSource,
        settings: StageSettings,
        precision: Precision,
        optimizer: Optimizer,
        *,
        announce: Callable[[str], None],
    ) -> None:
        self.model, self.windows, self.optimizer = model, windows, optimizer
        self.settings, self.precision, self.announce = settings.validate, precision, announce
        self.largest: int | None = None  # batch that fits into memory, where the requested one does not
        self.on_cpu = precision.device.type == "cpu" or self.settings.device == "cpu"
        when = self.settings.offload_optimizer
        self.offload = when == "always" or (when == "auto" and settings.offload and not self.on_cpu)
        self._warn_of_surprises()

    def __call__(self, forward: int, bar: TrainingBar, record: Callable[[str], None] = lambda phase: None) -> Validation:
        """Validate the model in its current state.

        Args:
            forward: windows per forward pass in training; the default for validation too.
            bar: shows the progress.
            record: records memory for a phase.

        Raises:
            NonFiniteError: a forecast is not finite.
            OutOfMemoryError: memory does not suffice after all retries.
        """
        return until_it_fits(
            lambda: self._attempt(forward, bar, record), lambda reason: self._give_way(forward, reason), self.precision.device
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the settings that fit into memory."""
        return {"largest": self.largest, "on_cpu": self.on_cpu, "offload": self.offload}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the result of `state_dict`."""
        self.largest, self.on_cpu, self.offload = state["largest"], state["on_cpu"], state["offload"]

    def batch_size(self, forward: int) -> int:
        """Return the validation batch size, where training forwards `forward` windows."""
        asked = self.settings.batch_size or forward
        return asked if self.largest is None else min(asked, self.largest)

    def warn_of_larger_batches(self, forward: int) -> None:
        """Warn where validation takes more windows together than training does."""
        if self.batch_size(forward) > forward:
            warnings.warn(
                f"validate.batch_size {self.batch_size(forward)} is larger than the {forward} windows of a forward pass in training: "
                "validation may need more memory than training; leave it out to use as many",
                stacklevel=3,
            )

    def _attempt(self, forward: int, bar: TrainingBar, record: Callable[[str], None]) -> Validation:
        bar.start_validation(len(self.windows))
        with offloaded(self.optimizer) if self.offload else nullcontext():
            record("VALIDATION_START")
            moved = self.on_cpu and self.precision.device.type != "cpu"
            model = copy_on_cpu(self.model) if moved else self.model
            precision = Precision(self.precision.name, CPU) if moved else self.precision
            validation = validate(model, self.windows, self.batch_size(forward), precision, on_batch=bar.validated)
            record("VALIDATION_END")
        return validation

    def _give_way(self, forward: int, reason: str) -> None:
        tried = min(self.batch_size(forward), len(self.windows))
        if not self.on_cpu and self.settings.offload_optimizer == "auto" and not self.offload:
            self.offload = True
            remedy = "while the optimizer's state waits in host memory"
        elif tried > 1:
            self.largest = tried // 2
            remedy = f"with {self.largest}"
        elif not self.on_cpu and self.settings.device == "auto":
            self.on_cpu, self.offload, self.largest = True, self.settings.offload_optimizer == "always", None
            remedy = f"on the CPU with {self.batch_size(forward)}; validate.device train would stop here instead"
        else:
            first = self.settings.batch_size or forward
            raise OutOfMemoryError(
                f"validation: out of memory with one window to a forward pass, after {first} at first ({reason}); "
                "set validate.device to auto or cpu where training has a GPU, free memory that other programs hold, or lower model.hidden"
            )
        self.announce(f"validation: out of memory with {tried} windows to a forward pass ({reason}); this one and those to come {remedy}")

    def _warn_of_surprises(self) -> None:
        if self.precision.device.type != "cpu":
            return
        if self.settings.offload_optimizer == "always":
            warnings.warn(
                "validate.offload_optimizer: always only costs time on the CPU, where the state is in host memory already; use auto",
                stacklevel=4,
            )
        if self.settings.device != "auto":
            warnings.warn(f"validate.device: {self.settings.device} has no effect where training is on the CPU; use auto", stacklevel=4)


def copy_on_cpu(model: Model) -> Model:
    """Copy a model to host memory; takes no device memory, and the model stays unchanged."""
    copies: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("cpu", copy=True), parameter.requires_grad) for parameter in model.parameters()
    }
    copies |= {id(buffer): buffer.to("cpu", copy=True) for buffer in model.buffers()}
    return copy.deepcopy(model, copies)


@contextmanager
def offloaded(optimizer: Optimizer) -> Iterator[None]:
    """Hold the optimizer's state in host memory, and restore it bit for bit, step counters included.

    The state stays complete meanwhile, so it can be saved; a step is refused, since it would mix devices.

    Args:
        optimizer: any optimizer whose state lies in tensors.

    Raises:
        RuntimeError: at a step taken meanwhile.
        OutOfMemoryError: other tensors took the state's room; a step stays refused, since part of the state is missing.
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
        with explain_out_of_memory(
            "the optimizer's state does not fit back onto its device; set validate.offload_optimizer to never, or free memory"
        ):
            for state, name, device in homes:
                state[name] = state[name].to(device)
        hook.remove()
