"""What `prepare` puts in lies where the model lies; the meta device stands for any that is not the CPU."""

import pytest

from tests.model.small import small_model
from tftq.errors import QuantizationError
from tftq.model.tabulate import tabulate
from tftq.quant.prepare import prepare


def test_quantizers_are_on_the_models_device() -> None:
    table, _ = tabulate(small_model())
    prepared = prepare(table.to("meta"), lstm="int8")
    assert {tensor.device.type for tensor in (*prepared.parameters(), *prepared.buffers())} == {"meta"}


def test_preparing_twice_is_refused() -> None:
    prepared = prepare(tabulate(small_model())[0], lstm="int8")
    with pytest.raises(QuantizationError, match="prepared already"):
        prepare(prepared, lstm="int8")
