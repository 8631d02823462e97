"""Checkpoints: a complete one is always on disk, and reading one runs no code from it."""

import os
import pickle
import random
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tftq.errors import CheckpointError
from tftq.io import written_whole

FORMAT = 2  # increased whenever older files can no longer be read


# Exceptions of zipfile, torch and pickle for a file that is damaged or no checkpoint.
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, pickle.UnpicklingError)


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint under a temporary name, flush it to the disk, and only then replace the previous one.

    Args:
        path: the file; its folder exists.
        content: tensors and plain Python types.

    Raises:
        OSError: the disk is full or not writable; the previous checkpoint is untouched.
    """
    with written_whole(path) as part, part.open("wb") as file:
        torch.save({"format": FORMAT, **content}, file)
    if os.name == "posix":  # the new name itself reaches the disk only with its folder; Windows cannot open one
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, its tensors on the CPU.

    Raises:
        CheckpointError: it is missing, damaged, or of another version of the format.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch reads past a flipped byte, but it wrote a checksum of every part
            if (part := archive.testzip()) is not None:
                raise CheckpointError(f"{path}: damaged in {part}; use another checkpoint or train anew")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no checkpoint there; train without resuming, or name the run's folder") from error
    except _DAMAGE as error:
        reason = str(error).split("\n")[0]
        raise CheckpointError(f"{path}: damaged, or no checkpoint of tftq ({reason}); use another checkpoint or train anew") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path}: format {found} cannot be read; allowed: {FORMAT}; train anew with this version")
    return content


def load_model(model: nn.Module, content: Mapping[str, Any], path: Path) -> None:
    """Copy a checkpoint's weights and buffers into a model.

    Raises:
        CheckpointError: names or shapes differ; every one is listed.
    """
    try:
        model.load_state_dict(content["model"])
    except RuntimeError as error:
        raise CheckpointError(f"{path}: of another model; train anew, or use the recipe in the run's folder\n{error}") from error


def random_state() -> dict[str, Any]:
    """Return the state of every random generator: of Python, NumPy, torch and, where there are any, CUDA devices."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.array(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore every random generator to a `random_state`; CUDA's only on a machine with the same number of devices."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
