"""From a policy to a checked ONNX file: raw bars and the position held in, a score of every position out."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tftq.agents.policy import Observations, Policy, scores_of
from tftq.agents.recipe import AgentFormat, AgentQuantRecipe
from tftq.agents.rewards import POSITIONS, Earnings, Rewards, Scores, choices, crossed, followed, scored
from tftq.data.columns import Inputs
from tftq.data.windows import Windows
from tftq.export.census import take_census
from tftq.export.deploy import deploy
from tftq.export.gate import BATCH_INVARIANCE, CHECKED_BATCHES, EXACT, STEP, Check, Proof, at_least, distances, equals, integrity, require
from tftq.export.graph import EXAMPLE_BATCH, trace
from tftq.export.publish import MEASURED_THREADS, Proven, to_be_proven
from tftq.plan.export import WINDOWS
from tftq.quant.calibration import calibrate
from tftq.quant.equalize import equalize
from tftq.quant.layers import FakeQuantizedLinear
from tftq.quant.prepare import swap_modules
from tftq.quant.weights import with_rounded_weights
from tftq.serve.measure import measured
from tftq.serve.session import feeds, open_session

AGREEMENT = 0.99  # of the positions that a file chooses, those that the trained policy would choose too, or nearly
NEAR = 0.01  # of the spread of the scores: between two that are closer, rounding decides


@dataclass(frozen=True)
class ExportedPolicy(Proven):
    """A policy that passed the gate.

    Attributes:
        path, proof: see `tftq.export.publish.Proven`.
        agreement: share of the validation bars and positions held at which it chooses what the policy chooses as it was trained.
        earnings: what it earns on the validation windows.
    """

    agreement: float
    earnings: Earnings

    @property
    def found(self) -> dict[str, object]:
        """What it decides, as plain types."""
        return {"agreement": self.agreement, "val": asdict(self.earnings)}


def quantized(policy: Policy, recipe: AgentQuantRecipe, train: Windows) -> Policy:
    """A copy of a policy whose layers multiply integers, equalized and calibrated on training windows, each with every position held.

    Args:
        policy: on the CPU.
        recipe: how many windows, and how a range comes from what they show.
        train: the training windows.

    Raises:
        QuantizationError: a range is not finite, or was never observed.
    """
    prepared = copy.deepcopy(policy)
    equalize(list(prepared.layers), (prepared.observation(*seen) for seen in _observations(train, recipe.calibration_windows)))
    swap_modules(prepared, {nn.Linear: FakeQuantizedLinear})
    calibrate(prepared, _observations(train, recipe.calibration_windows), recipe.calibration, percentile=recipe.percentile)
    return prepared.eval()


def export_policy(
    policy: Policy,
    trained: Policy,
    kind: AgentFormat,
    folder: Path,
    validation: Windows,
    rewards: Rewards,
    *,
    metadata: Mapping[str, object],
) -> ExportedPolicy:
    """Write `<folder>/<kind>.onnx` and what was proven of it, or nothing.

    Args:
        policy: on the CPU; calibrated for the format with integer weights.
        trained: as it was trained.
        kind: the format.
        folder: where to; made where missing.
        validation: the windows to prove and to measure it with.
        rewards: of the same windows.
        metadata: what to note in the file.

    Raises:
        GateError: the file is not what it should be; no file with its name is left.
    """
    path, proven = folder / f"{kind}.onnx", folder / f"{kind}.export.json"
    with to_be_proven(path, proof=proven) as (part,):
        part.write_bytes(build_graph(policy, {**metadata, "format": kind}))
        chosen, wanted = choices(_scores_of_file(part), validation), scored(scores_of(trained), validation)
        proof = _prove(part, policy, validation, kind, near_best(chosen, wanted))
    proof.write(proven, [path])
    agreement = float((chosen == wanted.argmax(2)).double().mean())
    return ExportedPolicy(path, proof, agreement, rewards.earnings(followed(chosen, rewards)))


def build_graph(policy: Policy, metadata: Mapping[str, object]) -> bytes:
    """An ONNX model: `history` [batch, lookback, columns] raw and `position` [batch, 1] in, `scores` [batch, 3] out, any batch size.

    Args:
        policy: where it is calibrated, its weights are stored as INT8, and the products are of integers.
        metadata: what to note in the file beside the inputs, as JSON.

    Returns:
        The serialized model; the same for the same policy.
    """
    inputs = policy.inputs
    shapes = {"history": (EXAMPLE_BATCH, inputs.lookback, len(inputs.history)), "position": (EXAMPLE_BATCH, 1)}
    return trace(deploy(policy), shapes, ("scores",), {**_describe(inputs), **metadata})


def _describe(inputs: Inputs) -> dict[str, object]:
    """What a caller must know: each input's columns in order, the window, and what the scores are of."""
    history = [{"name": column.name, "role": column.role, "categories": column.categories} for column in inputs.history]
    position = [{"name": "position", "role": "state", "categories": 0}]
    return {"lookback": inputs.lookback, "inputs": {"history": history, "position": position}, "positions": list(POSITIONS)}


def _observations(windows: Windows, count: int) -> Iterator[Observations]:
    """Windows spread over a part's whole time, each with every position held, some at a time."""
    chosen = torch.linspace(0, len(windows) - 1, min(count, len(windows))).round().long()
    for indices in chosen.split(WINDOWS):
        yield Observations(*crossed(windows, indices))


def _scores_of_file(path: Path, *, optimise: bool = True) -> Scores:
    session = open_session(path, optimise=optimise)

    def scores(history: Tensor, position: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(session.run(["scores"], feeds(session, (history, position)))[0]))

    return scores


def near_best(chosen: Tensor, scores: Tensor) -> float:
    """The share of choices that score the best, or less than `NEAR` of the spread of all scores below it.

    Args:
        chosen: actions, int64 [windows, 3].
        scores: of the actions by the policy that they should be of [windows, 3, 3].
    """
    short = scores.amax(2) - scores.gather(2, chosen[..., None])[..., 0]  # [windows, 3]
    return float((short <= NEAR * (scores.max() - scores.min())).double().mean())


def _prove(path: Path, policy: Policy, validation: Windows, kind: AgentFormat, agreement: float) -> Proof:
    """Hold an exported policy against the torch policy it came from.

    Raises:
        GateError: a property does not hold; the whole table is in the message.
    """
    (seen,) = _observations(validation, WINDOWS)
    expected = scores_of(policy)(*seen).numpy()  # [batch, 3]
    spread = float(expected.max() - expected.min()) or 1.0
    file = _scores_of_file(path)
    as_written, optimised = _scores_of_file(path, optimise=False)(*seen).numpy(), file(*seen).numpy()
    order = torch.arange(sum(CHECKED_BATCHES)) % len(seen.history)
    parts = torch.cat([file(*seen.some(indices)) for indices in order.split(list(CHECKED_BATCHES))]).numpy()
    census = take_census(path, path.with_suffix(".optimised"))
    path.with_suffix(".optimised").unlink()

    ties = None
    if kind == "int8_ptq":  # a tie moves a score no further than the rounding of everything
        floating = scores_of(with_rounded_weights(policy))(*seen).numpy()
        ties = max(STEP, float(np.abs(floating - expected).max()) / spread)
    checks: list[Check] = [
        *distances("from torch, as written", as_written, expected, spread, EXACT, ties=ties),
        *distances("from torch, as optimised", optimised, expected, spread, EXACT, ties=ties),
        *distances("of batches of 1, 2 and 7 from all at once", parts, optimised[order], spread, BATCH_INVARIANCE, ties=ties),
        equals("values that are not finite", float((~np.isfinite(optimised)).sum()), 0),
        at_least("positions chosen that score best by the trained policy, or nearly", agreement, AGREEMENT),
        *(integrity(census, policy) if kind == "int8_ptq" else []),
    ]
    require(f"{path.name} ({kind})", checks)
    here = measured(path, threads=MEASURED_THREADS)
    return Proof(checks, float(np.abs(optimised - expected).max()), census, here.cost, here.nodes)
