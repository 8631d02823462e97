"""An exported policy: equal to torch, integer where it says so, described, and held to what the trained one chooses."""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from tests.agents.small import waves
from tests.export.made import ORIGIN
from tftq.agents.export import ExportedPolicy, export_policy, near_best, quantize
from tftq.agents.policy import Policy, layer_sizes, scores_of
from tftq.agents.recipe import AgentQuantRecipe
from tftq.agents.rewards import Rewards, best_actions, cross_positions, measure_earnings
from tftq.errors import GateError
from tftq.export import prove as prover
from tftq.export.publish import publish
from tftq.io import sha256
from tftq.serve.measure import Measurement
from tftq.serve.proof import proven_bytes
from tftq.spec.formats import Format
from tftq.spec.metadata import read_metadata

DATA = waves()
REWARDS = Rewards(DATA.validation, cost_ticks=0.5, tick=0.25)
PTQ = AgentQuantRecipe(method="ptq", calibration_windows=32)


def policy(*hidden: int) -> Policy:
    """One that tells whether the price will rise, from the last row's first column, and would rather stay where it is."""
    inputs = DATA.train.inputs
    torch.manual_seed(0)
    layers = [module for sizes in layer_sizes(inputs, hidden) for module in (nn.Linear(*sizes), nn.ReLU())][:-1]
    return Policy(inputs, DATA.scaling.history, nn.Sequential(*layers)).eval()


@pytest.fixture(autouse=True)
def _measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own for each file would take longer than everything else here."""
    cost = {"rss_bytes": 1_000_000, "load_ms": 1.0, "latency_ms": 0.5, "process_bytes": 2_000_000}
    monkeypatch.setattr(prover, "measure", lambda path, *, threads: Measurement(cost, {"CPUExecutionProvider": {"Gemm": 3}}))


def exported(folder: Path, trained: Policy, kind: Format, recipe: AgentQuantRecipe = PTQ) -> ExportedPolicy:
    made = quantize(trained, recipe, DATA.train) if kind == "int8_ptq" else trained
    return export_policy(made, trained, kind, folder, DATA.validation, REWARDS, algorithm="dqn", origin=ORIGIN)


@pytest.mark.parametrize("kind", ["fp32", "int8_ptq"])
def test_a_file_scores_as_its_policy_does_from_raw_rows(tmp_path: Path, kind: Format) -> None:
    trained = policy(32, 32)  # a float product of fewer than sixteen weights would not be counted
    found = exported(tmp_path, trained, kind)
    session = ort.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    history, position = cross_positions(DATA.validation, torch.arange(5))
    (scores,) = session.run(["scores"], {"history": history.numpy(), "position": position.numpy()})
    assert scores.shape == (15, 3)
    expected = scores_of(trained)(history, position).numpy()
    assert np.allclose(scores, expected, atol=1e-5 if kind == "fp32" else 0.05 * np.ptp(expected))
    assert found.agreement >= 0.98
    assert found.files == (tmp_path / f"{kind}.onnx", tmp_path / f"{kind}.export.json")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in found.files}
    proof = json.loads(found.files[1].read_text())
    assert all(check["passed"] for check in proof["checks"])
    assert proof["cost"]["rss_bytes"] == proven_bytes(found.files[1], [sha256(found.path)]) == 1_000_000
    census = found.proof.census
    if kind == "int8_ptq":
        assert (census.float_weight_products, census.int8_weight_share, sum(census.integer_products.values())) == (0, 1.0, 3)
    else:
        assert found.earnings == measure_earnings(scores_of(trained), DATA.validation, REWARDS)
    described = read_metadata(found.path)
    assert (described.model, described.format, described.lookback, described.positions) == ("dqn", kind, 4, (-1, 0, 1))
    assert described.names("history") == ("price", "volume", "hour")
    assert described.inputs["position"] == (("position", "state", 0),)
    publish({kind: found}, tmp_path / "published")
    assert (tmp_path / "published" / found.path.name).read_bytes() == found.path.read_bytes()


def test_calibration_sees_every_position_and_leaves_the_policy_as_it_was() -> None:
    trained = policy(8)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    prepared = quantize(trained, PTQ, DATA.train)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())
    assert isinstance(trained.layers[0], nn.Linear)
    scores = scores_of(prepared)
    assert len({tuple(scores(*cross_positions(DATA.train, torch.tensor([3])))[row].tolist()) for row in range(3)}) == 3


def test_a_file_that_decides_otherwise_is_refused_and_not_left(tmp_path: Path) -> None:
    trained, other = policy(8), policy(8)
    with torch.no_grad():
        other.layers[-1].bias += torch.tensor([9.0, 0.0, 0.0])  # always short
    assert (best_actions(scores_of(other), DATA.validation) == 0).all()
    exported(tmp_path, trained, "fp32")  # which must not be taken for the other
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(
        GateError, match=r"FAILED  positions chosen that score best by the trained policy, or nearly .* \(allowed >= 0\.99\)"
    ):
        export_policy(other, trained, "fp32", tmp_path, DATA.validation, REWARDS, algorithm="dqn", origin=ORIGIN)
    assert not list(tmp_path.iterdir())


def test_a_choice_between_nearly_equal_scores_is_no_error() -> None:
    scores = torch.tensor([[[0.0, 10.0, 9.95], [0.0, 10.0, 9.8]]])
    assert near_best(torch.tensor([[1, 1]]), scores) == 1.0
    assert near_best(torch.tensor([[2, 1]]), scores) == 1.0  # 0.05 of a spread of 10
    assert near_best(torch.tensor([[2, 2]]), scores) == 0.5  # 0.2 of it


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    trained = policy(8)
    with torch.no_grad():
        trained.layers[-1].weight[0, 0] = torch.inf
    with pytest.raises(GateError, match=r"FAILED  values that are not finite"):
        exported(tmp_path, trained, "fp32")
