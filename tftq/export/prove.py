"""Prove an exported model: run its files beside their torch model, check them at the gate, and measure their cost."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tftq.errors import GateError, ProviderError
from tftq.export.census import Census, take_census
from tftq.export.gate import BATCH_INVARIANCE, CHECKED_BATCHES, STEP, Check, distances, require, storage
from tftq.io import sha256, written_whole
from tftq.quant.weights import with_rounded_weights
from tftq.serve.measure import measure, measure_pair
from tftq.serve.proof import HASHES
from tftq.spec.formats import FORMATS, Format

MEASURED_THREADS = 2  # for measuring latencies


@dataclass(frozen=True)
class Proof:
    """All measurements of a model that passed the gate.

    Attributes:
        checks: the properties, all passed.
        max_abs_diff: largest distance from the torch model, in the target's unit, as the runtime optimises the graph.
        census: its products and weights.
        cost: load_ms, latency_ms, rss_bytes and process_bytes at batch 1 in a fresh process, on the CPU.
        nodes: execution provider -> operator -> nodes.
        gpu: `Measurement` on a GPU as plain types, or `skipped`, the reason why it was not; None for formats not meant for a GPU.
    """

    checks: list[Check]
    max_abs_diff: float
    census: Census
    cost: dict[str, Any]
    nodes: dict[str, dict[str, int]]
    gpu: dict[str, Any] | None = None

    def write(self, path: Path, models: Sequence[Path]) -> None:
        """Write the proof, atomically, with the hashes of the models, by which a reader checks that it is theirs; see `proven_bytes`.

        Args:
            path: the file, JSON.
            models: the proven files.
        """
        found = {**asdict(self), HASHES: [sha256(model) for model in models]}
        with written_whole(path) as part:
            part.write_text(json.dumps(found, indent=1), encoding="utf-8")


class Comparison(NamedTuple):
    """Two outputs for the same windows that must agree.

    Attributes:
        name: for the table of checks: the reference and the compared output.
        output: float32 [windows, ...].
        reference: the same shape.
        tolerance: the largest distance, as a share of the spread, where no value can lie on a rounding tie.
    """

    name: str
    output: np.ndarray
    reference: np.ndarray
    tolerance: float


class Outcome(NamedTuple):
    """The outputs of a subject's files.

    Attributes:
        output: for all windows, as the runtime optimises the graph, float32 [windows, ...].
        comparisons: outputs that must agree; the spread of the first one's reference is the unit of every distance.
    """

    output: np.ndarray
    comparisons: Sequence[Comparison]


@dataclass(frozen=True)
class Subject:
    """An exported model to be proven.

    Attributes:
        title: in the gate's message.
        files: the model in one piece, or the step and the forecast half of a streaming pair.
        format: of its weights and products.
        model: the files' source, or one that computes the same; in integers in eval mode where they do.
        compute: from a torch model to its output for the windows of the proof, float32 [windows, ...].
        run: runs the files on the same windows, given the model's output.
        inspect: the further checks, of the optimised output.
        kept: the layers that were to stay in floating point where the others are quantized.
    """

    title: str
    files: tuple[Path, ...]
    format: Format
    model: nn.Module
    compute: Callable[[Any], np.ndarray]
    run: Callable[[np.ndarray], Outcome]
    inspect: Callable[[np.ndarray], list[Check]]
    kept: Collection[str] = ()


class RunFile(Protocol):
    """Run a file on some of the windows of the proof, of all without indices; as written where the runtime must not optimise."""

    def __call__(self, indices: Tensor | None = None, *, optimise: bool = True) -> np.ndarray: ...


def prove(subject: Subject, *, gpu: str | None = None) -> Proof:
    """Check an exported model at the gate, and measure its cost.

    Args:
        subject: the model, and how to run it.
        gpu: the UUID of the GPU, to measure formats for a GPU there too.

    Raises:
        GateError: a property does not hold, the whole table is in the message; or the measuring process failed.
    """
    expected = subject.compute(subject.model)
    output, comparisons = subject.run(expected)
    reference = comparisons[0].reference
    spread = float(reference.max() - reference.min()) or 1.0  # in the output's unit where all of it is the same
    ties = None
    if FORMATS[subject.format].multiplies_integers:
        # One activation that rounds the other way moves it no further than the rounding of all of them.
        floating = subject.compute(with_rounded_weights(subject.model))
        ties = max(STEP, float(np.abs(floating - expected).max()) / spread)
    census = take_census(*subject.files, kept=subject.kept)
    checks = [check for comparison in comparisons for check in distances(*comparison, spread=spread, ties=ties)]
    checks += subject.inspect(output)
    checks += storage(census, subject.model, subject.format, subject.kept)
    require(subject.title, checks)
    measure_files = measure if len(subject.files) == 1 else measure_pair
    here = measure_files(*subject.files, threads=MEASURED_THREADS)
    on_gpu = measure_on_gpu(subject.files[0], subject.format, gpu=gpu)
    return Proof(checks, float(np.abs(output - expected).max()), census, here.cost, here.nodes, on_gpu)


def run_in_batches(run: RunFile, expected: np.ndarray, tolerance: float) -> Outcome:
    """Run a model in one piece as written, as the runtime optimises it, and in batches of several sizes.

    Args:
        run: the file.
        expected: the torch model's output for all windows.
        tolerance: of the distance from it, see `Comparison`.
    """
    as_written, optimised = run(optimise=False), run()
    order = torch.arange(sum(CHECKED_BATCHES)) % len(expected)  # from the first again where there are fewer windows
    parts = np.concatenate([run(indices) for indices in order.split(list(CHECKED_BATCHES))])
    return Outcome(
        optimised,
        [
            Comparison("from torch, as written", as_written, expected, tolerance),
            Comparison("from torch, as optimised", optimised, expected, tolerance),
            Comparison("of batches of 1, 2 and 7 from all at once", parts, optimised[order], BATCH_INVARIANCE),
        ],
    )


def measure_on_gpu(path: Path, format: Format, *, gpu: str | None) -> dict[str, Any] | None:
    """Measure a session on the GPU, or give the reason why not, which neither speaks against the model nor fails the run.

    Args:
        path: the model.
        format: those that multiply integers are not for a GPU.
        gpu: its UUID; None where there is none.

    Returns:
        See `Proof.gpu`.
    """
    if FORMATS[format].multiplies_integers:
        return None
    if gpu is None:
        return {"skipped": "the run was on the CPU"} if FORMATS[format].for_gpu else None
    try:
        return asdict(measure(path, threads=MEASURED_THREADS, gpu=gpu))
    except (ProviderError, GateError) as error:
        return {"skipped": str(error)}
