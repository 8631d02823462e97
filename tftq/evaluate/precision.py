"""The number format of training: autocast, loss scaling, and a check that the device supports it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from tftq.errors import PrecisionError

Name = Literal["fp32", "fp16", "bf16"]
_DTYPES: dict[Name, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Precision:
    """A number format on a device; weights stay in FP32 in every one, products run in the format."""

    name: Name
    device: torch.device

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Return the context for forward passes; it does nothing in FP32."""
        without_onednn = self.name == "fp16" and self.device.type == "cpu"  # it lacks the FP16 LSTM that PyTorch's own kernels have
        was_on = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)[0] if without_onednn else None
        try:
            with torch.autocast(self.device.type, dtype=_DTYPES[self.name], enabled=self.name != "fp32"):
                yield
        finally:
            if was_on is not None:
                torch.backends.mkldnn.set_flags(_enabled=was_on, _fp32_precision=None)

    def scaler(self, before: GradScaler | None = None) -> GradScaler:
        """Return a new gradient scaler, which acts in FP16 only; with the scale of the one before, if any, but nothing unscaled yet."""
        scaler = GradScaler(self.device.type, enabled=self.name == "fp16")
        if before is not None:
            scaler.load_state_dict(before.state_dict())
        return scaler

    def check(self) -> None:
        """Try the format on the device, with the layers of a model, forward and backward.

        Raises:
            PrecisionError: the device has no kernel for one of them, or returns non-finite numbers.
        """
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            lstm, norm, linear = (layer.to(self.device) for layer in (nn.LSTM(8, 8, batch_first=True), nn.LayerNorm(8), nn.Linear(8, 8)))
            probe = torch.ones(2, 4, 8, device=self.device)
        try:
            with self.autocast():
                output = linear(norm(lstm(probe)[0]))
            output.float().mean().backward()
        except RuntimeError as error:
            raise self._refusal(str(error).split("\n")[0]) from error
        gradients = [parameter.grad for layer in (lstm, norm, linear) for parameter in layer.parameters()]
        if not all(gradient is not None and gradient.isfinite().all() for gradient in gradients):
            raise self._refusal("its gradients are not finite")

    def _refusal(self, reason: str) -> PrecisionError:
        others = {"fp32": "another device", "fp16": "bf16, or fp32", "bf16": "fp32"}
        return PrecisionError(
            f"train.precision: {self.name} does not work on this {self.device.type} (tried an LSTM, a norm and a linear layer: {reason});"
            f" use {others[self.name]}"
        )
