"""Validation measures rightly and leaves no trace."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from tests.agents.small import waves
from tests.train.stand_ins import HORIZON, QUANTILES, TinyModel, TinyWindows
from tftq.data.windows import Windows
from tftq.errors import NonFiniteError
from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import naive_q_risk, validate
from tftq.memory.components import state_tensors
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.optimizer import build_optimizer
from tftq.train.validate import offloaded

FP32 = Precision("fp32", torch.device("cpu"))


def test_the_batch_size_does_not_matter() -> None:
    model, windows = TinyModel(), TinyWindows(17)
    results = []
    for batch in (8, 17, 1):
        done: list[int] = []
        results.append(validate(model, windows, batch, FP32, on_batch=done.append))
        assert sum(done) == results[-1].windows == 17
        assert max(done) == batch
    for other in results[1:]:
        assert other.loss == pytest.approx(results[0].loss, rel=1e-6)
        assert other.q_risk == pytest.approx(results[0].q_risk, rel=1e-6)
        assert (other.coverage, other.crossing_rate) == (results[0].coverage, results[0].crossing_rate)
    batch = windows.batch(range(17))
    assert results[0].loss == pytest.approx(quantile_loss(model(*batch.inputs), batch.target, QUANTILES, torch.ones(HORIZON)).item())


def test_every_module_is_in_eval_and_then_in_its_own_mode_again() -> None:
    model = TinyModel(dropout=0.5)
    model.norm.eval()
    during: list[bool] = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: during.append(module.training))
    first = validate(model, TinyWindows(5), 2, FP32)
    assert during and not any(during)
    assert (model.training, model.dropout.training, model.norm.training) == (True, True, False)
    assert validate(model, TinyWindows(5), 2, FP32) == first, "dropout must be off"


def test_modes_come_back_after_an_error_too() -> None:
    model = TinyModel()
    model.head.weight.data[0] = math.nan
    with pytest.raises(NonFiniteError):
        validate(model, TinyWindows(5), 2, FP32)
    assert all(module.training for module in model.modules())


def test_no_graph_is_built() -> None:
    model = TinyModel()
    graphs: list[bool] = []
    model.register_forward_hook(lambda _, __, output: graphs.append(output.requires_grad))
    validate(model, TinyWindows(5), 2, FP32)
    assert graphs == [False] * 3
    assert model.head.weight.requires_grad


def test_the_format_of_training_is_used() -> None:
    model = TinyModel()
    formats: set[torch.dtype] = set()
    model.register_forward_hook(lambda _, __, output: formats.add(output.dtype))
    validate(model, TinyWindows(5), 2, Precision("bf16", torch.device("cpu")))
    assert formats == {torch.bfloat16}


def test_a_nan_in_one_weight_names_the_layer() -> None:
    model = TinyModel()
    model.norm.bias.data[2] = math.nan
    with pytest.raises(NonFiniteError, match=r"windows 0 to 1 is not finite: .* norm \(LayerNorm\); its weights bias are not finite"):
        validate(model, TinyWindows(5), 2, FP32)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_overflow_names_the_layer_whose_weights_are_finite() -> None:
    model = TinyModel()
    model.body.weight.data.fill_(3e38)
    with pytest.raises(NonFiniteError, match=r"body \(Linear\); its weights are finite, so its input or its arithmetic overflows"):
        validate(model, TinyWindows(5), 5, FP32)


def test_bad_data_is_told_from_a_bad_model() -> None:
    windows = TinyWindows(6)
    windows.history[4, 0, 1] = math.nan
    with pytest.raises(NonFiniteError, match=r"windows 3 to 5 is not finite: the batch's history is not finite in its windows \[1\]"):
        validate(TinyModel(), windows, 3, FP32)


def test_the_naive_risk_reads_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = waves().validation
    everything = np.arange(len(windows))
    target = windows.batch(everything).target.astype(np.float64)
    risk = float(np.abs(target - windows.naive(everything)).sum()) / float(np.abs(target).sum())
    monkeypatch.setattr(Windows, "history", None)
    assert naive_q_risk(windows) == risk == 1.0
    assert naive_q_risk(windows, batch_size=7) == pytest.approx(risk, rel=1e-12)


def test_the_naive_risk_is_that_of_a_p50_forecast() -> None:
    class Naive(TinyModel):
        def forward(self, history: torch.Tensor, future: torch.Tensor, static: torch.Tensor | None = None) -> torch.Tensor:
            return history[:, -1, :1, None].expand(-1, HORIZON, len(QUANTILES))

    windows = TinyWindows(17)
    assert naive_q_risk(windows, batch_size=5) == pytest.approx(validate(Naive(), windows, 4, FP32).q_risk[0.5], rel=1e-6)
    assert naive_q_risk(TinyWindows(3, target=0.0)) == pytest.approx(TinyWindows(3).history[:, -1, 0].abs().mean().item(), rel=1e-6)


def stepped_optimizer(name: Literal["adamw", "adamw8bit"] = "adamw") -> torch.optim.Optimizer:
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)  # large enough for moments in 8 bits
    optimizer = build_optimizer(model, OptimizerRecipe(name=name, lr=0.1))
    model.weight.grad = torch.randn(64, 64)
    optimizer.step()
    return optimizer


def test_the_optimizer_comes_back_bit_for_bit_and_goes_on_as_if_nothing_was() -> None:
    ours, theirs = stepped_optimizer(), stepped_optimizer()
    (state,) = ours.state.values()
    before = {name: value.clone() for name, value in state.items()}
    places = {name: value.data_ptr() for name, value in state.items()}
    assert before.keys() == {"step", "exp_avg", "exp_avg_sq"}
    with offloaded(ours):
        assert all(state[name].data_ptr() != place for name, place in places.items()), "every tensor is moved, the step counter too"
        saved = ours.state_dict()["state"][0]
        assert all(torch.equal(saved[name], value) for name, value in before.items()), "a checkpoint meanwhile is complete"
    assert all(torch.equal(state[name], value) for name, value in before.items())
    ours.step()
    theirs.step()
    assert torch.equal(ours.param_groups[0]["params"][0], theirs.param_groups[0]["params"][0])


def test_moments_in_8_bits_come_back_bit_for_bit() -> None:
    ours, theirs = stepped_optimizer("adamw8bit"), stepped_optimizer("adamw8bit")
    (state,), (other,) = ours.state.values(), theirs.state.values()
    with offloaded(ours):
        assert {tensor.device.type for tensor in state_tensors(ours)} == {"cpu"}
    assert state["exp_avg"].dtype == torch.uint8
    assert state.keys() == other.keys() and state["step"] == other["step"]
    assert all(torch.equal(state[name], other[name]) for name in state if name != "step")
    ours.step()
    theirs.step()
    assert torch.equal(ours.param_groups[0]["params"][0], theirs.param_groups[0]["params"][0])


def test_a_step_while_the_state_is_away_is_refused() -> None:
    optimizer = stepped_optimizer()
    before = optimizer.param_groups[0]["params"][0].detach().clone()
    with pytest.raises(RuntimeError, match="state is off its device"), offloaded(optimizer):
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["params"][0], before)
    optimizer.step()
    assert not torch.equal(optimizer.param_groups[0]["params"][0], before)
