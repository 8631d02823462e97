"""Find the model file that a path names: a file, a folder of models, or the folder of a run."""

from pathlib import Path

from tftq.errors import PredictError
from tftq.spec.formats import FORMATS, PREFERRED, Format

BATCH_SIZE = 8  # windows per run of a model: 32 of the reference model take 25 MB more and a seventh less time
CHANGEABLE = ("symbol", "time_zone", "duplicates", "missing")  # options of data that may differ between training and forecasting


def model_folder(path: Path) -> Path:
    """Return the folder of models in a run's folder, or the folder itself where it holds models."""
    return path / "exports" if (path / "exports").is_dir() else path


def find_model(path: Path, format: Format | None) -> Path:
    """Find the model that a path names.

    Args:
        path: a file, a folder of models, or the folder of a run; of a folder the first format of `PREFERRED` is taken.
        format: which of a folder's formats to take; None for the preferred one.

    Raises:
        PredictError: there is no model, none of that format, or a format was given for a single file.
    """
    if not path.is_dir():
        if format is not None:
            raise PredictError(f"{path}: is a single model; --format applies only to folders: leave it out or give the folder of a run")
        return path
    folder = model_folder(path)
    formats = [name for name in PREFERRED if (folder / FORMATS[name].files[0]).is_file()]
    if not formats or (format is not None and format not in formats):
        raise PredictError(f"{folder}: no {format or 'exported'} model; it has {', '.join(formats) or 'none'}")
    return folder / FORMATS[format or formats[0]].files[0]
