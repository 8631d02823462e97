"""What opening a million bars costs, in memory and through a cache: each in a fresh process, by the system's own count of its pages.

    python benchmarks/data.py                                      # a million bars, and three million through the cache
    python benchmarks/data.py --bars 100000 --larger 300000

Growth is that of resident memory since the imports, sampled every few milliseconds. Pages of a mapped file count as resident while they are
mapped, though the system takes them back when it needs room; so growth of memory that only the process itself can give back
("anonymous") stands beside it. Writes benchmarks/results/data.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import torch

from tftq.data.load import load_datasets
from tftq.data.synthetic import bars
from tftq.data.windows import Datasets
from tftq.evaluate.loss import quantile_loss
from tftq.model.batch import gather
from tftq.recipe.model import TftRecipe
from tftq.recipe.schema import BarsRecipe, OptimizerRecipe
from tftq.train.build import build_model
from tftq.train.optimizer import build_optimizer

MB = 1e6
SAMPLING = 0.005  # seconds
BATCH = 32


class Growth:
    """How far the memory of this process rises above where it stood.

    Attributes:
        resident: bytes at the highest.
        anonymous: bytes at the highest, but for pages of files and shared ones.
        seconds: how long it took.
    """

    def __init__(self) -> None:
        self.resident = self.anonymous = 0
        self.seconds = 0.0

    def of(self, work: Callable[[], Any]) -> Any:
        """Do the work and watch memory meanwhile."""
        before, done, start = self._now(), threading.Event(), time.perf_counter()

        def watch() -> None:
            while not done.wait(SAMPLING):
                resident, anonymous = self._now()
                self.resident = max(self.resident, resident - before[0])
                self.anonymous = max(self.anonymous, anonymous - before[1])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return work()
        finally:
            done.set()
            watcher.join()
            self.seconds = time.perf_counter() - start

    @staticmethod
    def _now() -> tuple[int, int]:
        found = psutil.Process().memory_info()
        return found.rss, found.rss - found.shared


def measured(path: Path, cache: Path | None, updates: int) -> list[dict[str, Any]]:
    """Open bars, and train on them a little, in this process.

    Args:
        path: a parquet file of bars.
        cache: a folder for their rows; None makes them in memory.
        updates: how long to train.

    Returns:
        A row for opening and one for training.
    """
    opening, training = Growth(), Growth()
    recipe = BarsRecipe(kind="bars", path=path, cache=cache)
    datasets: Datasets = opening.of(lambda: load_datasets(recipe))
    training.of(lambda: _train(datasets, updates))
    array = datasets.train.rows.nbytes
    steps = (("open", opening, {}), ("train", training, {"updates": updates, "batch_size": BATCH}))
    return [
        {
            "step": step,
            "bars": len(datasets.train.rows),
            "array_mb": array / MB,
            "resident_growth_mb": growth.resident / MB,
            "anonymous_growth_mb": growth.anonymous / MB,
            "ratio": growth.resident / array,
            "seconds": growth.seconds,
            **more,
        }
        for step, growth, more in steps
    ]


def _train(datasets: Datasets, updates: int) -> None:
    recipe = TftRecipe(hidden=16, heads=2, knots=8)
    model = build_model(recipe, datasets).train()
    optimizer = build_optimizer(model, OptimizerRecipe())
    scale = torch.from_numpy(datasets.target_scaling.scale)
    order = torch.randperm(len(datasets.train), generator=torch.Generator().manual_seed(0))
    for indices in order[: updates * BATCH].split(BATCH):
        batch = gather(datasets.train, indices)
        quantile_loss(model(*batch.inputs), batch.target, recipe.quantiles, scale).backward()
        optimizer.step()
        optimizer.zero_grad()


def in_fresh_process(path: Path, cache: Path | None, updates: int) -> list[dict[str, Any]]:
    """What `measured` returns where nothing ran before."""
    command = [sys.executable, __file__, "--updates", str(updates), "--measure", str(path), *([] if cache is None else [str(cache)])]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", type=int, default=1_000_000, help="opened in memory, and through a cache")
    parser.add_argument("--larger", type=int, default=3_000_000, help="opened through a cache only")
    parser.add_argument("--updates", type=int, default=200, help=f"to train for, {BATCH} windows each")
    parser.add_argument("--measure", type=Path, nargs="+", metavar="PATH", help="a file, and a folder for its cache: print rows and end")
    arguments = parser.parse_args()
    if arguments.measure:
        path, *folder = arguments.measure
        print(json.dumps(measured(path, folder[0] if folder else None, arguments.updates)))
        return
    from common import write_result

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for count in (arguments.bars, arguments.larger):
            path = Path(folder) / f"{count}.parquet"
            pyarrow.parquet.write_table(bars(count), path, compression="zstd", row_group_size=2**16)
            cases = [("cache, first run", cache), ("cache, later run", cache)]
            for case, where in ([("in memory", None)] if count == arguments.bars else []) + cases:
                for row in in_fresh_process(path, where, arguments.updates):
                    rows.append({"case": case, **row})
                    print(*(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in rows[-1].items()))
    print(write_result("data", rows))


if __name__ == "__main__":
    main()
