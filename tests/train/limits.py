"""Trainings that a test runs in a process of their own, because they measure or limit the whole process: `python limits.py NAME FOLDER`.

Each prints one JSON document.
"""

import json
import sys
import warnings
from pathlib import Path

import psutil
import torch
from torch import Tensor

from tests.model.small import small_model
from tests.train.stand_ins import RealWindows, TinyModel, tiny_trainer

WIDTH = 2**20  # floats in a row of the wide model's one big intermediate tensor: 4 MiB


class Wide(TinyModel):
    """Spreads every window over `WIDTH` numbers, which autograd keeps."""

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        forecast = super().forward(history, future, static)
        spread = forecast.flatten(1)[:, :1].expand(-1, WIDTH).sigmoid().mean(1)  # [batch]
        return forecast + spread[:, None, None]


def limited(folder: Path) -> dict[str, object]:
    """Train with batches of 64 wide windows where the address space takes fewer."""
    import resource  # which Windows lacks

    tiny_trainer(folder / "warm", Wide(), windows=4, batch_size=2, epochs=1).fit()  # threads and kernels are there
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20, resource.RLIM_INFINITY))
    model = Wide()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tiny_trainer(folder / "limited", model, windows=64, batch_size=64, epochs=1).fit()
    return {
        "sizes": [batch for training, batch in model.seen if training],
        "batch_size": result.batch_size,
        "updates": result.updates,
        "warnings": [str(warning.message) for warning in caught],
    }


def long(folder: Path) -> dict[str, object]:
    """Resident memory and open files at every update of the real network, in 20 epochs of 11 updates, each validated and saved."""
    process = psutil.Process()
    resident: list[int] = []
    files: list[int] = []

    def note(update: int) -> None:
        resident.append(process.memory_info().rss)
        files.append(len(process.open_files()))

    model = small_model(static=False, hidden=8, lstm_layers=1, knots=4)
    windows = RealWindows(model.inputs, 22)
    tiny_trainer(folder, model, train=windows, validation=windows, epochs=20, memory_every=1, on_update=note).fit()
    return {"resident": resident, "files": files}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"limited": limited, "long": long}[sys.argv[1]](Path(sys.argv[2]))))
