"""When QAT observes, rounds and freezes: a pure function of the applied update."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from tftq.errors import QuantizationError
from tftq.quant.quantizers import quantizers


class Switches(NamedTuple):
    """The switches of the quantizers during one update."""

    observing: bool
    enabled: bool


@dataclass(frozen=True)
class QatSchedule:
    """observe -> fake-quantize -> freeze, each counted in applied updates from 0.

    Args:
        observe: first update during which ranges follow the observed values.
        fake_quant: first update that computes as the integers will.
        freeze: first update from which ranges stay as they are.
        total: updates in all.

    Raises:
        QuantizationError: not 0 <= observe <= fake_quant <= freeze < total.
    """

    observe: int
    fake_quant: int
    freeze: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.observe <= self.fake_quant <= self.freeze < self.total:
            raise QuantizationError(
                f"quant.qat: observe {self.observe}, fake_quant {self.fake_quant}, freeze {self.freeze} of {self.total} updates; "
                "allowed is 0 <= observe <= fake_quant <= freeze < total: lower them or raise quant.qat.epochs"
            )

    def switches(self, update: int) -> Switches:
        """Return the switches of an update, counted from 0."""
        return Switches(observing=self.observe <= update < self.freeze, enabled=update >= self.fake_quant)

    def apply(self, model: nn.Module, update: int) -> None:
        """Settle every quantizer of the model after the update before, and set its switches for this one."""
        switches = self.switches(update)
        for _, quantizer in quantizers(model):
            quantizer.settle()
            quantizer.observing, quantizer.enabled = switches
