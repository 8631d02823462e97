"""What the device can compute in, tried; and what each format computes."""

import pytest
import torch
from torch import nn

from tftq.errors import PrecisionError
from tftq.evaluate.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_products_run_in_the_format_and_weights_stay_fp32(name: str, dtype: torch.dtype) -> None:
    layer = nn.Linear(2, 2)
    with Precision(name, CPU).autocast():  # type: ignore[arg-type]
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_only_fp16_scales() -> None:
    assert [Precision(name, CPU).scaler().is_enabled() for name in ("fp32", "fp16", "bf16")] == [False, True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_check_passes_and_leaves_the_random_state(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Precision(name, CPU).check()  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_missing_kernel_is_named_and_bf16_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*_: object) -> None:
        raise RuntimeError("could not create a primitive\nmore lines")

    monkeypatch.setattr(nn.LSTM, "forward", no_kernel)
    with pytest.raises(PrecisionError, match=r"fp16 does not work on this cpu \(.*could not create a primitive\); use bf16"):
        Precision("fp16", CPU).check()


def test_gradients_that_overflow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda _, x: x * torch.inf)
    with pytest.raises(PrecisionError, match=r"bf16 .*gradients are not finite.*use fp32"):
        Precision("bf16", CPU).check()


def test_fp16_trains_an_lstm_here_or_says_that_it_cannot() -> None:
    precision, lstm = Precision("fp16", CPU), nn.LSTM(4, 4)
    try:
        with precision.autocast():
            output = lstm(torch.ones(2, 1, 4))[0]
        output.float().mean().backward()
    except RuntimeError:
        with pytest.raises(PrecisionError, match="use bf16"):
            precision.check()
    else:
        precision.check()
        assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in lstm.parameters())


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("on", [True, False])
def test_the_kernels_in_use_are_put_back_after_an_error_too(name: str, on: bool) -> None:
    before = torch.backends.mkldnn.set_flags(_enabled=on, _fp32_precision=None)[0]
    try:
        with pytest.raises(KeyError), Precision(name, CPU).autocast():  # type: ignore[arg-type]
            assert torch.backends.mkldnn.enabled == (on and name != "fp16")
            raise KeyError
        assert torch.backends.mkldnn.enabled == on
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before, _fp32_precision=None)
