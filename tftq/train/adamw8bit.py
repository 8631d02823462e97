"""AdamW with moments in 8 bits; ours, since torchao's compiles at its first step (51 s on a CPU) and takes its rate as a tensor.

The moments take a quarter of the memory, and no step makes a temporary as large as a large parameter.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BLOCK = 256  # numbers that share a scale
SMALLEST = 4096  # numbers of a parameter from which its moments are quantized
SLICE = 2**18  # numbers updated together
LEADING_BITS = 19  # leading bits of a float, the index of its code: sign, exponent and ten bits of the fraction


def dynamic_values(*, signed: bool) -> list[float]:
    """Return the 256 numbers that 8 bits represent, ascending: seven decades, each with twice the numbers of the one below.

    Dynamic tree quantization (Dettmers et al. 2021, arXiv 2110.02861, section 1.3), its bit patterns numbered by value.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade if signed else decade + 1)
        means = [(0.1 + 0.9 * (place + 0.5) / count) * 10.0 ** (decade - 6) for place in range(count)]
        values += means + ([-mean for mean in means] if signed else [])
    return sorted(values)


MOMENTS = {"exp_avg": dynamic_values(signed=True), "exp_avg_sq": dynamic_values(signed=False)}


class AdamW8bit(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), both moments kept as codes with a scale for each 256 of them.

    Small parameters keep theirs in FP32.

    Args:
        params: parameters or param groups, contiguous.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._tables: dict[tuple[str, torch.device], _Table] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply the existing gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; `Optimizer.load_state_dict` casts it to its parameter's type, and codes are whole numbers in any."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in MOMENTS:
                if f"{name}_scale" in state:
                    state[name] = state[name].to(torch.uint8)

    def _step_parameter(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state.update(_new_moments(parameter))
        state["step"] += 1
        values, gradient = parameter.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for start in range(0, len(values), SLICE):
            self._step_slice(values[start : start + SLICE], gradient[start : start + SLICE], state, start, group)

    def _step_slice(self, values: Tensor, gradient: Tensor, state: dict[str, Any], start: int, group: dict[str, Any]) -> None:
        (beta1, beta2), step = group["betas"], state["step"]
        part = slice(start, start + len(values))
        first = self._read(state, "exp_avg", part).lerp_(gradient, 1 - beta1)
        second = self._read(state, "exp_avg_sq", part).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self._write(state, "exp_avg", part, first)
        self._write(state, "exp_avg_sq", part, second)
        root = second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        values.mul_(1 - group["lr"] * group["weight_decay"]).addcdiv_(first, root, value=-group["lr"] / (1 - beta1**step))

    def _read(self, state: dict[str, Any], name: str, part: slice) -> Tensor:
        """Return a part of a moment in FP32, which may be overwritten."""
        moment: Tensor = state[name].view(-1)[part]
        if f"{name}_scale" not in state:
            return moment.clone()
        scale = state[f"{name}_scale"][part.start // BLOCK : part.stop // BLOCK]
        return self._table(name, moment.device).decode(moment).view(-1, BLOCK).mul_(scale[:, None]).view(-1)

    def _write(self, state: dict[str, Any], name: str, part: slice, moment: Tensor) -> None:
        if f"{name}_scale" not in state:
            state[name].view(-1)[part] = moment
            return
        blocks = moment.view(-1, BLOCK)
        scale = blocks.abs().amax(1)
        state[f"{name}_scale"][part.start // BLOCK : part.stop // BLOCK] = scale
        shares = blocks / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        state[name].view(-1)[part] = self._table(name, moment.device).encode(shares.view(-1))

    def _table(self, name: str, device: torch.device) -> "_Table":
        if (name, device) not in self._tables:
            self._tables[name, device] = _Table(MOMENTS[name], device)
        return self._tables[name, device]


class _Table:
    """Tables from codes to numbers, and from numbers in [-1, 1] to the nearest code.

    Args:
        numbers: the codes' values, ascending, 256 of them.
        device: the parameters' device.
    """

    def __init__(self, numbers: list[float], device: torch.device) -> None:
        self.values = values = torch.tensor(numbers, device=device)
        # A search for each number would take forty times as long as a look-up by its leading bits, and be hardly more exact.
        ignored = 32 - LEADING_BITS
        patterns = torch.arange(2**LEADING_BITS, dtype=torch.int32, device=device) << ignored | 1 << (ignored - 1)
        floats = patterns.view(torch.float32).nan_to_num_(0.0)
        self.codes = torch.bucketize(floats, (values[1:] + values[:-1]) / 2, out_int32=True).to(torch.uint8)
        if numbers[0] == 0:  # a small second moment must not become 0: the step divides by its root
            self.codes[1 : 2 ** (LEADING_BITS - 1)].clamp_(min=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Convert uint8 codes to numbers [count]."""
        return self.values.index_select(0, codes.int())

    def encode(self, numbers: Tensor) -> Tensor:
        """Convert numbers in [-1, 1] to uint8 codes [count]."""
        pattern = numbers.view(torch.int32) >> (32 - LEADING_BITS) & (2**LEADING_BITS - 1)
        return self.codes.index_select(0, pattern)


def _new_moments(parameter: Tensor) -> dict[str, Tensor]:
    if parameter.numel() < SMALLEST or parameter.numel() % BLOCK:
        return {name: torch.zeros_like(parameter) for name in MOMENTS}
    moments = {}
    for name in MOMENTS:
        moments[name] = torch.zeros_like(parameter, dtype=torch.uint8)
        moments[f"{name}_scale"] = torch.zeros(parameter.numel() // BLOCK, device=parameter.device)
    return moments
