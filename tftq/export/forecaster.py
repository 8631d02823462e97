"""Export a forecaster in one piece: build it, prove it, measure it on the validation windows, and only then name the file."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tftq.data.windows import Windows
from tftq.evaluate.exported import evaluate
from tftq.evaluate.metrics import Validation, validation_summary
from tftq.evaluate.windows import evaluating, metrics_for
from tftq.export.gate import EXACT, HALF, soundness
from tftq.export.graph import build_forecaster
from tftq.export.prove import Proof, Subject, prove, run_in_batches
from tftq.export.publish import Proven, to_be_proven
from tftq.model.batch import Batch, gather
from tftq.model.forecaster import Forecaster
from tftq.plan.export import EXPORT_WINDOWS
from tftq.quant.weights import with_rounded_weights
from tftq.serve.session import feeds, open_session
from tftq.spec.formats import FORMATS, Format
from tftq.spec.metadata import Origin


@dataclass(frozen=True)
class Exported(Proven):
    """A forecaster that passed the gate.

    Attributes:
        path, proof: see `Proven`.
        quality: of its forecasts of the validation windows.
        test: of its forecasts of the test windows, where the recipe keeps some.
    """

    quality: Validation
    test: Validation | None

    @property
    def found(self) -> dict[str, object]:
        """Return the quality of its forecasts, in plain types."""
        return {
            **validation_summary(self.quality).as_dict(),
            **({} if self.test is None else {"test": validation_summary(self.test).as_dict()}),
        }


def export_model(
    model: Forecaster,
    format: Format,
    folder: Path,
    validation: Windows,
    test: Windows | None,
    *,
    batch_size: int,
    origin: Origin,
    gpu: str | None = None,
) -> Exported:
    """Write `<folder>/<format>.onnx` and its proof, or nothing.

    Args:
        model: a Mamba-2, or a TFT in the table form; prepared and calibrated for the formats with integer weights.
        format: the format.
        folder: the folder to write to; created if missing.
        validation: the windows to prove and to measure it with.
        test: further windows to measure it with, where there are any.
        batch_size: windows per run.
        origin: the file's run and data.
        gpu: the UUID of the GPU, to measure formats for a GPU there too.

    Raises:
        GateError: the model failed a check; no file with its name is left.
    """
    path, proof = folder / FORMATS[format].files[0], folder / FORMATS[format].proof_file
    with to_be_proven(path, proof=proof) as unproven:
        (part,) = unproven.parts
        part.write_bytes(build_forecaster(model, format, validation.target_unit, origin))
        computes = with_rounded_weights(model) if FORMATS[format].weight_only else model
        unproven.proof = prove_forecaster(part, computes, _spread_out(validation), format, kept=model.kept_float, gpu=gpu)
        quality = evaluate(part, validation, metrics_for(model), batch_size=batch_size)
        tested = None if test is None else evaluate(part, test, metrics_for(model), batch_size=batch_size)
    return Exported(path, unproven.proof, quality, tested)


def prove_forecaster(
    path: Path, model: nn.Module, batch: Batch, format: Format, *, kept: Collection[str] = (), gpu: str | None = None
) -> Proof:
    """Prove a forecaster in one piece, see `prove`.

    Args:
        path: the ONNX file.
        model: the file's source, or one that computes the same; in integers in eval mode where the file does.
        batch: some real windows.
        format: the format that the file is meant to have.
        kept: the layers that were to stay in floating point where the others are quantized.
        gpu: the UUID of the GPU, to measure it there too.
    """

    def run(indices: Tensor | None = None, *, optimise: bool = True) -> np.ndarray:
        return run_file(path, batch if indices is None else _select(batch, indices), optimise=optimise)

    tolerance = HALF if FORMATS[format].for_gpu else EXACT
    subject = Subject(
        title=f"{path.name} ({format})",
        files=(path,),
        format=format,
        model=model,
        compute=lambda model: forecasts_of(model, batch),
        run=lambda expected: run_in_batches(run, expected, tolerance),
        inspect=soundness,
        kept=kept,
    )
    return prove(subject, gpu=gpu)


def forecasts_of(model: nn.Module, batch: Batch) -> np.ndarray:
    """Compute a torch model's forecasts in eval mode and in parts that fit into memory [batch, horizon, quantiles], float32."""
    with evaluating(model), torch.no_grad():
        parts = [model(*_select(batch, indices).inputs) for indices in torch.arange(len(batch.history)).split(EXPORT_WINDOWS)]
    return torch.cat(parts).float().cpu().numpy()


def run_file(path: Path, batch: Batch, *, optimise: bool = True) -> np.ndarray:
    """Compute the forecasts of a file for a batch [batch, horizon, quantiles], float32."""
    session = open_session(path, optimise=optimise)
    return np.asarray(session.run(["forecast"], feeds(session, batch.to("cpu").inputs))[0])


def _select(batch: Batch, indices: Tensor) -> Batch:
    static = None if batch.static is None else batch.static[indices]
    return Batch(batch.history[indices], batch.future[indices], static, batch.target[indices])


def _spread_out(windows: Windows, count: int = EXPORT_WINDOWS) -> Batch:
    """Select windows spread over a part's whole time."""
    return gather(windows, torch.linspace(0, len(windows) - 1, min(count, len(windows))).round().long())
