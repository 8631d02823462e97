"""The environment that a run's figures depend on: device, versions of packages, and the commit of the code."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tftq.io import installed

if TYPE_CHECKING:
    import torch

RL = ("stable-baselines3", "gymnasium")  # of the extra rl
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy", "pyarrow", "pydantic", *RL)


@dataclass(frozen=True)
class Device:
    """Where a run computes.

    Attributes:
        name: cpu, or the name of the GPU.
        threads: of an operator on the CPU.
        cuda: the version that torch was built with; None without, and where a run does without torch.
        driver: the version of the GPU's driver, or why it is not known; None on a CPU.
    """

    name: str
    threads: int
    cuda: str | None = None
    driver: str | None = None


def device_of_torch(device: "torch.device") -> Device:
    """Describe a device of torch."""
    import torch  # here, for what serves does without

    threads, cuda = torch.get_num_threads(), torch.version.cuda
    if device.type == "cpu":
        return Device("cpu", threads, cuda)
    return Device(torch.cuda.get_device_name(device), threads, cuda, _driver())


def environment(device: Device, seed: int | None) -> dict[str, Any]:
    """Return the content of env.json.

    Args:
        device: where the run computes.
        seed: of its random generators; None where it draws nothing.
    """
    return {
        "tftq": installed("tftq"),  # None: run from a checkout that is not installed
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": device.threads,
        "packages": {name: version for name in PACKAGES if (version := installed(name)) is not None},
        "device": device.name,
        "cuda": device.cuda,
        "driver": device.driver,
        "git": _git(),
        "seed": seed,
    }


def _driver() -> str:
    """Return the version of the GPU's driver, or why it is not known."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"not known: {error}"


def _git() -> dict[str, Any]:
    """Return the commit of the code and whether it was changed since, or why they are not known."""
    here = Path(__file__).parents[1]

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # below another project's checkout, its commit says nothing
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")  # of the package
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": None, "reason": f"{type(error).__name__}: not run from a git checkout, or git is missing"}
    return {"commit": commit, "dirty": bool(changes)}
