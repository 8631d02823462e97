"""Which model a path means: a file, a folder of models, or the folder of a run."""

from pathlib import Path

from tftq.errors import PredictError
from tftq.recipe.schema import Format

PREFERRED: tuple[Format, ...] = ("int8_qat", "int4_qat", "int8_ptq", "int4_ptq", "fp32", "fp16", "fp16_int8")  # FP16 is meant for GPUs
BATCH_SIZE = 32  # windows to one run of the model
CHANGEABLE = ("symbol", "time_zone", "duplicates", "missing")  # options of data that may differ between training and forecasting


def model_folder(path: Path) -> Path:
    """Where the models of a run's folder lie, or of a folder of models."""
    return path / "exports" if (path / "exports").is_dir() else path


def model_file(path: Path, kind: Format | None) -> Path:
    """The model that a path means.

    Args:
        path: a file, a folder of models, or the folder of a run, of which the first of `PREFERRED` is taken.
        kind: which of a folder's formats to take.

    Raises:
        PredictError: there is none, not in that format, or no choice.
    """
    if not path.is_dir():
        if kind is not None:
            raise PredictError(f"{path}: is one model, so that a format has no choice; leave the format out or give the folder of a run")
        return path
    folder = model_folder(path)
    kept = [name for name in PREFERRED if (folder / f"{name}.onnx").is_file()]
    if not kept or (kind is not None and kind not in kept):
        raise PredictError(f"{folder}: no {kind or 'exported'} model; it has {', '.join(kept) or 'none'}")
    return folder / f"{kind or kept[0]}.onnx"
