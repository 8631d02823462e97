"""Scales, zero points and rounding: by hand, and against ONNX's own reference."""

import math

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from tftq.errors import QuantizationError
from tftq.quant.fake_quantize import fake_quantize
from tftq.quant.integers import INT8, INT32, SCALE_FLOOR, UINT8, IntegerType, check_range, quantization_parameters, quantize

FINITE = st.floats(-1e6, 1e6, width=32)


def parameters(low: float, high: float, kind: IntegerType) -> tuple[float, int]:
    scale, zero_point = quantization_parameters(torch.tensor(low), torch.tensor(high), kind)
    assert scale.dtype == torch.float32 and zero_point.dtype == torch.int32
    return scale.item(), int(zero_point)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero_point"),
    [
        (-1.0, 1.55, 0.01, 100),  # 2.55 over 255 steps, zero on the hundredth
        (0.0, 5.1, 0.02, 0),
        (-5.1, 0.0, 0.02, 255),
        (2.0, 5.1, 0.02, 0),  # zero is included below...
        (-5.1, -2.0, 0.02, 255),  # ...and above
        (0.0, 0.0, 2**-16, 0),
        (3e-9, 4e-9, 2**-16, 0),
    ],
)
def test_unsigned_by_hand(low: float, high: float, scale: float, zero_point: int) -> None:
    assert parameters(low, high, UINT8) == (pytest.approx(scale, rel=1e-6), zero_point)


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(-1.27, 0.5, 0.01), (-0.5, 1.27, 0.01), (0.2, 1.27, 0.01), (-2.54, -2.0, 0.02), (0.0, 0.0, 2**-16)],
)
def test_signed_is_symmetric_by_hand(low: float, high: float, scale: float) -> None:
    assert parameters(low, high, INT8) == (pytest.approx(scale, rel=1e-6), 0)


def test_every_channel_has_its_own() -> None:
    low, high = torch.tensor([-1.27, 0.0]), torch.tensor([0.3, 25.4])
    scale, zero_point = quantization_parameters(low, high, INT8)
    torch.testing.assert_close(scale, torch.tensor([0.01, 0.2]))
    assert zero_point.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("low", "high"),
    [(math.inf, -math.inf), (math.nan, 1.0), (0.0, math.nan), (-math.inf, 1.0), (0.0, math.inf), (1.0, 0.0)],
    ids=["never observed", "low NaN", "high NaN", "low Inf", "high Inf", "out of order"],
)
def test_what_is_no_range_is_an_error_that_names_the_tensor(low: float, high: float) -> None:
    with pytest.raises(QuantizationError, match=r"encoder\.weight: its range \[.*never observed.*calibrate"):
        check_range(torch.tensor([0.0, low]), torch.tensor([1.0, high]), "encoder.weight")


def onnx_quantize(x: np.ndarray, scale: float, zero_point: np.ndarray) -> np.ndarray:
    """As the specification's own reference rounds."""
    kind = helper.np_dtype_to_tensor_dtype(zero_point.dtype)
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["y"])],
        "quantize",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("zero_point", kind, []),
        ],
        [helper.make_tensor_value_info("y", kind, [None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.checker.check_model(model)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x, "scale": np.float32(scale), "zero_point": zero_point})
    return np.asarray(y)


def test_rounds_half_to_even_and_saturates_by_hand() -> None:
    x = torch.tensor([-1000.0, -0.75, -0.25, 0.25, 0.75, 1.25, 1000.0])
    half, hundred = torch.tensor(0.5), torch.tensor(100, dtype=torch.int32)
    assert quantize(x, half, hundred, UINT8).tolist() == [0, 98, 100, 100, 102, 102, 255]  # -1.5, -0.5, 0.5, 1.5, 2.5 steps
    assert quantize(x, half, torch.tensor(0), INT8).tolist() == [-127, -2, 0, 0, 2, 2, 127]


@settings(max_examples=50, deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=20), st.integers(-10, 6), st.integers(0, 255))
def test_rounds_as_onnx_does(values: list[float], exponent: int, zero_point: int) -> None:
    scale = 2.0**exponent
    ties = [(step + 0.5) * scale for step in range(-3, 4)]  # exact: the scale is a power of two
    x = np.array(values + ties, np.float32)

    ours = quantize(torch.from_numpy(x), torch.tensor(scale), torch.tensor(zero_point), UINT8)
    assert ours.dtype == torch.uint8
    np.testing.assert_array_equal(ours.numpy(), onnx_quantize(x, scale, np.uint8(zero_point)))  # type: ignore[arg-type]

    ours = quantize(torch.from_numpy(x), torch.tensor(scale), torch.tensor(0), INT8)
    theirs = onnx_quantize(x, scale, np.int8(0))  # type: ignore[arg-type]
    assert ours.dtype == torch.int8
    np.testing.assert_array_equal(ours.numpy(), np.maximum(theirs, -127))  # ours leaves -128 out


def test_the_ends_of_a_bias_survive_fp32() -> None:
    ends = quantize(torch.tensor([-1e20, 1e20]), torch.tensor(1.0), torch.tensor(0), INT32)
    assert ends.dtype == torch.int32 and ends.tolist() == [INT32.low, INT32.high] == [-(2**31) + 128, 2**31 - 128]


def covered(ends: tuple[float, float], kind: IntegerType) -> tuple[Tensor, Tensor]:
    return quantization_parameters(torch.tensor(min(ends)), torch.tensor(max(ends)), kind)


@settings(max_examples=200, deadline=None)
@given(st.tuples(FINITE, FINITE), st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([UINT8, INT8]))
def test_laws_of_rounding(ends: tuple[float, float], shares: list[float], kind: IntegerType) -> None:
    """Within half a step inside the range, itself when rounded twice, zero where it was zero."""
    scale, zero_point = covered(ends, kind)
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    x = (low + (high - low) * torch.tensor([0.0, 1.0, *shares])).clamp(low, high)
    rounded = fake_quantize(x, scale, zero_point, kind)
    assert bool(((rounded - x).abs() <= scale * (0.5 + 1e-4)).all())
    assert torch.equal(fake_quantize(rounded, scale, zero_point, kind), rounded)
    assert fake_quantize(torch.zeros(1), scale, zero_point, kind).item() == 0
    assert scale >= SCALE_FLOOR


@settings(max_examples=50, deadline=None)
@given(st.tuples(FINITE, FINITE), st.lists(FINITE, min_size=1, max_size=20), st.sampled_from([UINT8, INT8]))
def test_fake_quantization_is_what_the_stored_integers_say(ends: tuple[float, float], values: list[float], kind: IntegerType) -> None:
    scale, zero_point = covered(ends, kind)
    x = torch.tensor(values)
    integers = quantize(x, scale, zero_point, kind)
    assert torch.equal((integers.int() - zero_point) * scale, fake_quantize(x, scale, zero_point, kind))
