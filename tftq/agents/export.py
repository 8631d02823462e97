"""Export a policy to a checked ONNX file: raw bars and the position held in, a score of every position out."""

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tftq.agents.equalize import equalize
from tftq.agents.policy import Observations, Policy, scores_of
from tftq.agents.recipe import AgentQuantRecipe
from tftq.agents.rewards import POSITIONS, Earnings, Rewards, Scores, best_actions, cross_positions, follow_actions, score_windows
from tftq.data.windows import Windows
from tftq.export.deploy import deploy
from tftq.export.gate import EXACT, Check, at_least, finiteness
from tftq.export.graph import EXAMPLE_BATCH, build_graph, columns_of, tool_versions
from tftq.export.prove import Proof, Subject, prove, run_in_batches
from tftq.export.publish import Proven, to_be_proven
from tftq.plan.export import EXPORT_WINDOWS
from tftq.quant.calibration import calibrate
from tftq.quant.layers import FakeQuantizedLinear
from tftq.quant.prepare import swap_modules
from tftq.serve.session import feeds, open_session
from tftq.spec.formats import FORMATS, Format
from tftq.spec.metadata import AgentMetadata, InputColumn, Origin

AGREEMENT = 0.99  # share of a file's positions that the trained policy would choose too, or nearly
NEAR = 0.01  # of the spread of the scores: between two that are closer, rounding decides


@dataclass(frozen=True)
class ExportedPolicy(Proven):
    """A policy that passed the gate.

    Attributes:
        path, proof: see `tftq.export.publish.Proven`.
        agreement: share of the validation bars and positions held at which it chooses as the trained policy does.
        earnings: its earnings on the validation windows.
    """

    agreement: float
    earnings: Earnings

    @property
    def found(self) -> dict[str, object]:
        """Return the figures of its decisions, in plain types."""
        return {"agreement": self.agreement, "val": asdict(self.earnings)}


def quantize(policy: Policy, recipe: AgentQuantRecipe, train: Windows) -> Policy:
    """Copy a policy into one whose layers multiply integers, equalized and calibrated on training windows, each with every position held.

    Args:
        policy: on the CPU.
        recipe: the number of windows, and the calibration method.
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
    format: Format,
    folder: Path,
    validation: Windows,
    rewards: Rewards,
    *,
    algorithm: str,
    origin: Origin,
) -> ExportedPolicy:
    """Write `<folder>/<format>.onnx` and its proof, or nothing.

    Args:
        policy: on the CPU; calibrated for the format with integer weights.
        trained: as it was trained.
        format: the format.
        folder: the folder to write to; created if missing.
        validation: the windows to prove and to measure it with.
        rewards: of the same windows.
        algorithm: that trained it.
        origin: the file's run and data.

    Raises:
        GateError: the file failed a check; no file with its name is left.
    """
    path, proof = folder / FORMATS[format].files[0], folder / FORMATS[format].proof_file
    with to_be_proven(path, proof=proof) as unproven:
        (part,) = unproven.parts
        part.write_bytes(build_policy(policy, algorithm, format, origin))
        chosen, wanted = best_actions(_scores_of_file(part), validation), score_windows(scores_of(trained), validation)
        unproven.proof = _prove(part, policy, validation, format, near_best(chosen, wanted))
    agreement = float((chosen == wanted.argmax(2)).double().mean())
    return ExportedPolicy(path, unproven.proof, agreement, rewards.earnings(follow_actions(chosen, rewards)))


def build_policy(policy: Policy, algorithm: str, format: Format, origin: Origin | None = None) -> bytes:
    """Build an ONNX model: `history` [batch, lookback, columns] raw and `position` [batch, 1] in, `scores` [batch, 3] out, any batch size.

    Args:
        policy: where it is calibrated, its weights are stored as INT8, and the products are of integers.
        algorithm: that trained it.
        format: its name.
        origin: its run and data; None where no run made it.

    Returns:
        The serialized model; the same for the same policy.
    """
    inputs = policy.inputs
    shapes = {"history": (EXAMPLE_BATCH, inputs.lookback, len(inputs.history)), "position": (EXAMPLE_BATCH, 1)}
    metadata = AgentMetadata(
        model=algorithm,
        format=format,
        oldest_runtime=FORMATS[format].oldest_runtime,
        lookback=inputs.lookback,
        inputs={"history": columns_of(inputs.history), "position": (InputColumn("position", "state"),)},
        versions=tool_versions(),
        origin=origin,
        positions=POSITIONS,
    )
    return build_graph(deploy(policy), shapes, ("scores",), metadata)


def _observations(windows: Windows, count: int) -> Iterator[Observations]:
    """Yield windows spread over a part's whole time, each with every position held, some at a time."""
    chosen = torch.linspace(0, len(windows) - 1, min(count, len(windows))).round().long()
    for indices in chosen.split(EXPORT_WINDOWS):
        yield Observations(*cross_positions(windows, indices))


def _scores_of_file(path: Path, *, optimise: bool = True) -> Scores:
    session = open_session(path, optimise=optimise)

    def scores(history: Tensor, position: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(session.run(["scores"], feeds(session, (history, position)))[0]))

    return scores


def near_best(chosen: Tensor, scores: Tensor) -> float:
    """Return the share of choices that score the best, or less than `NEAR` of the spread of all scores below it.

    Args:
        chosen: actions, int64 [windows, 3].
        scores: of the actions by the policy that they should be of [windows, 3, 3].
    """
    short = scores.amax(2) - scores.gather(2, chosen[..., None])[..., 0]  # [windows, 3]
    return float((short <= NEAR * (scores.max() - scores.min())).double().mean())


def _prove(path: Path, policy: Policy, validation: Windows, format: Format, agreement: float) -> Proof:
    """Prove an exported policy, see `prove`: its scores, and the positions that it chooses."""
    (seen,) = _observations(validation, EXPORT_WINDOWS)

    def run(indices: Tensor | None = None, *, optimise: bool = True) -> np.ndarray:
        return _scores_of_file(path, optimise=optimise)(*(seen if indices is None else seen.some(indices))).numpy()

    def inspect(scores: np.ndarray) -> list[Check]:
        return [
            finiteness(scores),
            at_least("positions chosen that score best by the trained policy, or nearly", agreement, AGREEMENT),
        ]

    subject = Subject(
        title=f"{path.name} ({format})",
        files=(path,),
        format=format,
        model=policy,
        compute=lambda policy: scores_of(policy)(*seen).numpy(),  # [batch, 3]
        run=lambda expected: run_in_batches(run, expected, EXACT),
        inspect=inspect,
    )
    return prove(subject)
