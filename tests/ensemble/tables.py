"""Answers as a run of the ensemble writes them, of a few bars."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tftq.ensemble.answers import Answer
from tftq.spec.quantiles import quantile_name

MINUTE = 60_000_000_000
BEGIN = 1_704_697_800_000_000_000  # 2024-01-08T07:10:00Z


def answers_table(
    close: Sequence[float],
    members: Mapping[str, Sequence[Answer | None]],
    *,
    segments: Sequence[int] | None = None,
    names: Sequence[str] = ("P10", "P50", "P90"),
    resolution: str = "ns",
) -> pa.Table:
    """A row for each bar, member and step.

    Args:
        close: of each bar; bars are a minute apart, and an hour more between segments.
        members: name -> its answer at each bar, None where there is none.
        segments: of each bar; all are of one where not said.
        names: of the quantiles' columns; an answer has those of its levels.
        resolution: of the times.
    """
    part = [0] * len(close) if segments is None else list(segments)
    rows = []
    for bar, price in enumerate(close):
        own = {"time": BEGIN + bar * MINUTE + part[bar] * 60 * MINUTE, "segment": part[bar], "close": price}
        for member, answers in members.items():
            rows += [{**own, "member": member, **said} for said in _rows(answers[bar], names)]
    fields = {"time": pa.timestamp("ns", tz="UTC"), "segment": pa.int32(), "close": pa.float64(), "member": pa.string()}
    fields |= {"step": pa.int32(), "position": pa.float32()} | dict.fromkeys(names, pa.float32()) | {"state": pa.string()}
    table = pa.Table.from_pylist(rows, pa.schema(fields.items()))
    return table.set_column(0, "time", table["time"].cast(pa.timestamp(resolution, tz="UTC")))


def _rows(answer: Answer | None, names: Sequence[str]) -> list[dict[str, object]]:
    if answer is None:
        return [{"step": 0, "state": "warming up"}]
    if answer.quantiles is None:
        return [{"step": 0, "position": answer.position, "state": "ok"}]
    columns = [quantile_name(level) for level in answer.levels]
    assert set(columns) <= set(names)
    return [
        {"step": step, "position": answer.position, "state": "ok", **dict(zip(columns, map(float, row), strict=True))}
        for step, row in enumerate(answer.quantiles, 1)
    ]


def random_members(close: np.ndarray, seed: int = 0) -> dict[str, list[Answer | None]]:
    """An agent, two forecasters of different lengths and the ensemble, whose answers are drawn anew at each bar."""
    source = np.random.default_rng(seed)

    def forecast(horizon: int) -> Answer:
        return Answer.of_forecast(np.sort(source.normal(0, 1e-3, (horizon, 3)), axis=1), (0.1, 0.5, 0.9))

    return {
        "dqn": [Answer(float(source.integers(-1, 2))) for _ in close],
        "tft": [None if bar < 5 else forecast(3) for bar in range(len(close))],
        "mamba2": [forecast(2) for _ in close],
        "ensemble": [Answer(float(source.uniform(-1, 1))) for _ in close],
    }
