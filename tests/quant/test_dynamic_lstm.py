"""The LSTM that multiplies integers: its rounding by hand, and the whole of it against the runtime's own operator."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from tftq.quant.dynamic_lstm import DynamicLstm, dynamically_rounded

HIDDEN, STEPS, WINDOWS = 48, 20, 8


def test_each_window_is_rounded_over_its_own_range_with_zero_in_it() -> None:
    x = torch.tensor([[-1.0, 0.004, 1.55], [0.2, 0.5, 5.1], [-2.55, -0.004, -1.0], [0.0, 0.0, 0.0], [0.0, 1e-9, 2.55e-7]])
    expected = [[-1.0, 0.0, 1.55], [0.2, 0.5, 5.1], [-2.55, 0.0, -1.0], [0.0, 0.0, 0.0], [0.0, 1e-9, 2.55e-7]]
    torch.testing.assert_close(dynamically_rounded(x), torch.tensor(expected), rtol=1e-6, atol=1e-12)


def random_lstm() -> nn.LSTM:
    torch.manual_seed(1)
    return nn.LSTM(HIDDEN, HIDDEN, 2, batch_first=True)


def windows() -> tuple[Tensor, tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return torch.randn(WINDOWS, STEPS, HIDDEN), (torch.randn(2, WINDOWS, HIDDEN).tanh(), torch.randn(2, WINDOWS, HIDDEN))


def observed(lstm: nn.LSTM) -> DynamicLstm:
    made = DynamicLstm(lstm)
    for name, quantizer in made.weight_quantizers.items():
        quantizer.observe(getattr(lstm, name))
    return made


@pytest.mark.parametrize("start", [True, False])
def test_while_nothing_is_rounded_it_is_the_float_lstm(start: bool) -> None:
    lstm = random_lstm()
    x, state = windows()
    ours, theirs = observed(lstm).train()(x, state if start else None), lstm(x, state if start else None)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_missing_state_is_zeros() -> None:
    made, (x, _) = observed(random_lstm()).eval(), windows()
    zeros = torch.zeros(2, WINDOWS, HIDDEN)
    torch.testing.assert_close(made(x, None), made(x, (zeros, zeros)), rtol=0, atol=0)


def gates_of_onnx(x: Tensor) -> np.ndarray:
    """input, output, forget, cell of torch's input, forget, cell, output."""
    return x.detach().reshape(4, -1, *x.shape[1:])[[0, 3, 1, 2]].reshape(x.shape).numpy()


def runtime_layer(made: DynamicLstm, layer: int) -> onnxruntime.InferenceSession:
    """One operator of ONNX Runtime with the layer's weights, rounded here without the code under test."""
    constants = {}
    for kind, letter in (("ih", "W"), ("hh", "R")):
        weight = getattr(made.lstm, f"weight_{kind}_l{layer}").detach()
        scale = weight.abs().amax(1) / 127
        integers = torch.round(weight / scale[:, None]).clamp(-127, 127)
        constants[letter] = gates_of_onnx(integers).T[None].astype(np.int8)
        constants[f"{letter}_scale"] = gates_of_onnx(scale)[None]
        constants[f"{letter}_zero"] = np.zeros((1, 4 * HIDDEN), np.int8)
    biases = [gates_of_onnx(getattr(made.lstm, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
    constants["B"] = np.concatenate(biases)[None]
    names = ["X", "W", "R", "B", "", "h", "c", "", "W_scale", "W_zero", "R_scale", "R_zero"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["Y", "Y_h", "Y_c"], domain="com.microsoft", hidden_size=HIDDEN)

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs = [tensor("X", STEPS, 1, HIDDEN), tensor("h", 1, 1, HIDDEN), tensor("c", 1, 1, HIDDEN)]
    outputs = [tensor("Y", STEPS, 1, 1, HIDDEN), tensor("Y_h", 1, 1, HIDDEN), tensor("Y_c", 1, 1, HIDDEN)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "layer", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_it_computes_what_the_runtimes_operator_does_one_window_at_a_time() -> None:
    made = observed(random_lstm()).eval()
    x, state = windows()
    with torch.no_grad():
        output, (hidden, cell) = made(x, state)
        floating = made.lstm(x, state)[0]
    sessions = [runtime_layer(made, layer) for layer in (0, 1)]
    distances = []
    for window in range(WINDOWS):
        rows = x[window, :, None].numpy()
        ends = []
        for layer, session in enumerate(sessions):
            start = {name: part[layer, window].reshape(1, 1, HIDDEN).numpy() for name, part in zip("hc", state, strict=True)}
            rows, *end = session.run(None, {"X": rows, **start})
            rows = rows[:, 0]
            ends.append(np.stack(end).reshape(2, HIDDEN))
        theirs = np.concatenate([rows[:, 0], ends[1]])
        ours = np.concatenate([output[window].numpy(), hidden[1, window][None].numpy(), cell[1, window][None].numpy()])
        distances.append(np.abs(ours - theirs).max())
    assert np.median(distances) <= 2e-6, "but for rounding ties, the same numbers"
    rounding = float((output - floating).abs().max())
    assert max(distances) <= rounding > 1e-3, "a tie moves less than all the rounding"


def test_every_parameter_learns_through_the_rounding() -> None:
    made = observed(random_lstm()).train()
    for quantizer in made.weight_quantizers.values():
        quantizer.enabled = True
    x, state = windows()
    made(x.requires_grad_(), state)[0].square().sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in made.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() and gradient.any() for gradient in gradients)


def test_autocast_does_not_reach_its_arithmetic() -> None:
    made, (x, state) = observed(random_lstm()).eval(), windows()
    with torch.no_grad():
        plain = made(x, state)[0]
        with torch.autocast("cpu", torch.bfloat16):
            cast = made(x, state)[0]
    assert cast.dtype == torch.float32 and torch.equal(cast, plain)
