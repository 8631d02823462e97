"""Forecasting holds no more after many batches than after few, nor for a long file than for a short one."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.data.helpers import bar_columns, write
from tests.serving import bars_model
from tftq.jobs.predict import write_forecasts
from tftq.memory.counter import ByteCounter
from tftq.serve.forecast import predict


def test_m1_memory_stays_where_it_is(tmp_path: Path) -> None:
    """5,000 bars: from batch 10 to batch 100 of 32, what is held grows by less than the forecasts made meanwhile."""
    bars_model(tmp_path / "m.onnx")
    prediction = predict(tmp_path / "m.onnx", write(tmp_path / "a.parquet", bar_columns(5000)))
    out = tmp_path / "out.parquet"
    counter = ByteCounter()
    measures: tuple[tuple[AbstractContextManager[Any], Callable[[], int]], ...] = (
        (counter, lambda: counter.live_bytes),  # tensors
        (traced(), lambda: tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()),  # Python, numpy and Arrow
    )
    for watching, held in measures:
        with watching:
            sizes = [held() for _ in islice(write_forecasts(prediction.batches(32), out, prediction.model), 100)]
        assert sizes[99] - sizes[9] < (1 if watching is counter else 90 * 32 * 10 * 3 * 4)
    assert not out.exists()  # the last batches were never asked for


@contextmanager
def traced() -> Iterator[None]:
    """Let `tracemalloc` count, from zero."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def peaks(model: Path, data: Path) -> tuple[int, int]:
    """The most bytes that tensors, and that Python, numpy and Arrow, hold while the newest window is forecast."""
    with ByteCounter() as counter:
        list(predict(model, data, newest=True).batches())
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with traced():
            list(predict(model, data, newest=True).batches())
            return counter.peak_bytes, tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        pa.set_memory_pool(usual)


def test_m5_the_newest_window_needs_the_same_of_any_file(tmp_path: Path) -> None:
    """60 rows and the 50 that their features look at, against 100,000 rows in one row group."""
    bars_model(tmp_path / "m.onnx", warmup=0)
    few = peaks(tmp_path / "m.onnx", write(tmp_path / "short.parquet", bar_columns(110)))
    many = peaks(tmp_path / "m.onnx", write(tmp_path / "long.parquet", bar_columns(100_000)))
    assert many[0] == few[0]
    assert many[1] - few[1] < 2_000_000  # dictionaries of the file's pages, of 1 MB a column at most; the whole file's rows are 90 MB
