"""Measure four models in one process on a GPU against the memory budget of an ensemble."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.members import write_members
from tftq.errors import ProviderError
from tftq.report.models import describe_nodes
from tftq.serve.measure import measure
from tftq.train.device import gpu_uuid

FORMATS = ("fp16", "fp16_int8")  # of the forecasters; agents are small and in FP32
BUDGET_BYTES = 932_000_000  # with CUDA's own context
FIRST_ATTEMPT_BYTES = 3_411_000_000  # what the four took in training


def ensemble_rows(sizes: str, device: torch.device) -> list[dict[str, Any]]:
    """Run the members of an ensemble on a GPU, all in one process.

    Args:
        sizes: reference or small, see `benchmarks.members.RECIPES`; their weights are random.
        device: a GPU, the first.

    Returns:
        A row for each format: what the sessions occupy and the context of CUDA itself, None where unknown; the time of an
        answer of all, copies from and to the host included; whether that fits the budget; or `skipped`, the reason why there is none.
    """
    with tempfile.TemporaryDirectory() as name:
        folders = write_members(sizes, Path(name), gpu=True)
        return [_row(kind, list(folders.values()), device) for kind in FORMATS]


def _row(kind: str, folders: list[Path], device: torch.device) -> dict[str, Any]:
    paths = [path if (path := folder / f"{kind}.onnx").is_file() else folder / "fp32.onnx" for folder in folders]
    row: dict[str, Any] = {
        "case": f"ensemble_{kind}",
        "format": kind,
        "members": len(paths),
        "file_bytes": sum(path.stat().st_size for path in paths),
    }
    try:
        found = measure(*paths, threads=2, gpu=gpu_uuid(device))
    except ProviderError as error:
        return {**row, "skipped": str(error)}
    cost = found.cost
    row |= {"computed_by": describe_nodes(found.nodes), "nodes": found.nodes, "latency_ms": cost["latency_ms"]}
    row |= {"device_bytes": cost["device_bytes"], "context_bytes": cost["context_bytes"], "device_bytes_are": cost["device_bytes_are"]}
    row |= {"budget_bytes": BUDGET_BYTES, "first_attempt_bytes": FIRST_ATTEMPT_BYTES}
    if cost["device_bytes"] is None or cost["context_bytes"] is None:
        return row
    together = cost["device_bytes"] + cost["context_bytes"]
    return {**row, "together_bytes": together, "passed": together <= BUDGET_BYTES}
