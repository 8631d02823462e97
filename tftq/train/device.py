"""Choose a run's device, and seed its random generators."""

import random

import numpy as np
import torch

from tftq.errors import RecipeError


def choose_device(name: str) -> torch.device:
    """Return the device of a recipe; `auto` is CUDA where a device responds, not merely where the build supports it.

    Raises:
        RecipeError: CUDA is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "no CUDA device answers"
        raise RecipeError(f"device: cuda is asked for, but {reason}; use device=cpu or device=auto, or install a CUDA build of torch")
    return torch.device(name)


def gpu_uuid(device: torch.device) -> str | None:
    """Return a GPU's name for its driver; None for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def seed_everything(seed: int) -> None:
    """Seed every random generator that a run uses."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
