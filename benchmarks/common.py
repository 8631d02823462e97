"""What every measurement says of itself: on what machine, with which versions, of which commit."""

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from tftq.io import written_whole
from tftq.jobs.environment import device_of_torch, environment

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The processor, its cores and memory, and the GPU, None where there is none."""
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": None if gpu is None else gpu.name,
        "gpu_memory_gb": None if gpu is None else round(gpu.total_memory / 1e9, 1),
    }


def versions() -> dict[str, Any]:
    """Those of Python, tftq and the packages it stands on, and of CUDA, None for what is not installed."""
    found = environment(device_of_torch(torch.device("cpu")), None)
    return {"python": found["python"], "tftq": found["tftq"], **found["packages"], "cuda": found["cuda"]}


def commit() -> str:
    """The commit of the code that runs, with "-dirty" where it was changed since; "unknown" outside a checkout."""
    git = environment(device_of_torch(torch.device("cpu")), None)["git"]
    if git["commit"] is None:
        return "unknown"
    return str(git["commit"]) + ("-dirty" if git["dirty"] else "")


def write_result(name: str, rows: Sequence[Mapping[str, Any]], *, folder: Path = RESULTS) -> Path:
    """Write `<folder>/<name>.json`, whole or not at all.

    Args:
        name: of the benchmark.
        rows: one for each measured thing, units in the names of its figures, every figure finite.
        folder: where to; benchmarks/results where not said.

    Returns:
        The file.
    """
    content = {"machine": machine(), "versions": versions(), "commit": commit(), "rows": list(rows)}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def _cpu_model() -> str:
    """The processor's own name; on Linux the platform module knows only its kind."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
