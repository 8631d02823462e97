"""What a new bar costs the streaming pair, beside the model in one piece: INT8, the reference sizes, two threads.

    python benchmarks/stream.py                  # hidden 256, 8 heads, 2 LSTM layers, 225 variables, 60 -> 10
    python benchmarks/stream.py --sizes small    # those of recipes/qat_int8.yaml
    python benchmarks/stream.py --lstm int8      # the LSTM's weights stored as INT8

Random weights and bars: cost does not depend on them. Every bar of a replay is pushed and forecast, and compared with the model in one
piece. Each is opened as it is best alone: the threads of the one session spin, those of the two, which take turns, do not.
Writes benchmarks/results/stream.json; of other sizes or weights, one of that name.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import write_result
from inference import SIZES, TARGET, model

from tftq.export.graph import build_forecaster
from tftq.export.pair_graph import build_pair
from tftq.model.batch import Batch
from tftq.model.tabulate import tabulate
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.serve.session import feeds, open_session
from tftq.serve.stream import Stream

THREADS = 2


def timed(spent: list[float], call: Callable[[], np.ndarray]) -> np.ndarray:
    """What a call returns; its milliseconds are added to those spent."""
    start = time.perf_counter()
    result = call()
    spent.append(1e3 * (time.perf_counter() - start))
    return result


def replay_in_one_piece(
    path: Path, windows: list[np.ndarray], future: np.ndarray, static: np.ndarray | None, spent: list[float]
) -> list[np.ndarray]:
    """The forecast of every window by the model in one piece, whose session is gone afterwards: its threads would be in the way of others.

    Args:
        path: the model.
        windows: [lookback, history columns] each.
        future, static: of all of them [horizon, known columns], [static columns].
        spent: the milliseconds of each forecast are added to it.
    """
    session = open_session(path, threads=THREADS)
    beside = [future[None], *(() if static is None else (static[None],))]
    return [timed(spent, lambda window=window: session.run(None, feeds(session, [window[None], *beside]))[0][0]) for window in windows]


def main() -> None:
    """Build both, replay bars through both, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=SIZES, default="reference")
    parser.add_argument("--lstm", choices=("fp32", "int8"), default="fp32", help="how the LSTM's weights are stored")
    parser.add_argument("--bars", type=int, default=1000)
    arguments = parser.parse_args()

    table, _ = tabulate(model(SIZES[arguments.sizes], "knots"))
    inputs = {name: torch.randn(shape) for name, shape in table.inputs.shapes(32).items()}
    prepared = prepared_copy(table, lstm=arguments.lstm)
    calibrate(prepared, [Batch(inputs["history"], inputs["future"], inputs.get("static"), torch.zeros(32, 10))])
    prepared.eval()
    files = {"one_piece.onnx": build_forecaster(prepared, "int8_ptq", TARGET), **build_pair(prepared, "int8_ptq", TARGET)}

    lookback = table.inputs.lookback
    bars = torch.randn(lookback + arguments.bars, len(table.inputs.history)).numpy()
    future, static = inputs["future"][0].numpy(), inputs["static"][0].numpy() if "static" in inputs else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        whole: list[float] = []
        bar_by_bar: list[float] = []

        windows = [bars[last + 1 - lookback : last + 1] for last in range(lookback, len(bars))]
        expected = replay_in_one_piece(folder / "one_piece.onnx", windows, future, static, whole)

        stream = Stream(folder, static, threads=THREADS)
        stream.push(bars[:lookback])

        def next_bar(bar: np.ndarray) -> np.ndarray:
            stream.push(bar)
            return stream.forecast(future)

        found = [timed(bar_by_bar, lambda bar=bar: next_bar(bar)) for bar in bars[lookback:]]

    distance = np.abs(np.stack(found) - np.stack(expected)).max() / np.ptp(np.stack(expected))
    pair = {file: round(len(content) / 1e6, 2) for file, content in files.items() if file != "one_piece.onnx"}
    sizes = {"in one piece": len(files["one_piece.onnx"]) / 1e6, "streaming pair": sum(pair.values())}
    rows = [
        {
            **{
                "graph": graph,
                "sizes": arguments.sizes,
                "lstm_weights": arguments.lstm,
                "threads": THREADS,
                "bars": len(spent),
                "file_mb": round(sizes[graph], 2),
            },
            **{"latency_ms": round(statistics.median(spent), 2), "latency_p99_ms": round(float(np.quantile(spent, 0.99)), 2)},
        }
        for graph, spent in (("in one piece", whole), ("streaming pair", bar_by_bar))
    ]
    rows[1] |= {"step_file_mb": pair["step.onnx"], "forecast_file_mb": pair["forecast.onnx"], "distance_share": float(distance)}
    for row in rows:
        print(row)
    other = [arguments.sizes] if arguments.sizes != "reference" else []
    other += [f"lstm_{arguments.lstm}"] if arguments.lstm != "fp32" else []
    write_result("_".join(["stream", *other]), rows)


if __name__ == "__main__":
    main()
