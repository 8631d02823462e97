"""The log of answers: written bar by bar, so that a restart loses none, and at the end one complete parquet file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tftq.data.files import iso
from tftq.ensemble.ensemble import OWN, BarAnswers, Reply
from tftq.errors import EnsembleError
from tftq.io import written_whole
from tftq.spec.quantiles import quantile_name

ROW_GROUP = 65_536  # rows of answers.parquet that are held at a time


def answers_schema(levels: Sequence[float]) -> pa.Schema:
    """Return the columns of answers.parquet, which has a row for each bar, member and step.

    Args:
        levels: of all members' quantiles, ascending.
    """
    fields = {"time": pa.timestamp("ns", tz="UTC"), "segment": pa.int32(), "close": pa.float64(), "member": pa.string(), "step": pa.int32()}
    fields |= {"position": pa.float32(), **dict.fromkeys(map(quantile_name, levels), pa.float32()), "state": pa.string()}
    return pa.schema(fields.items())


def as_batch(answers: BarAnswers, levels: Sequence[float]) -> pa.RecordBatch:
    """Make the rows of one bar; see `answers_schema`."""
    blocks = [_block(one, levels) for one in answers.replies]  # [steps, 2 + levels] each
    lengths = [len(block) for block in blocks]
    rows = np.concatenate(blocks)
    count = len(rows)

    def repeated(values: Sequence[str]) -> pa.Array:
        return pa.array(np.repeat(np.array(values, object), lengths), pa.string())

    def number(column: np.ndarray) -> pa.Array:
        return pa.array(column.astype(np.float32), pa.float32(), mask=np.isnan(column))

    columns = [
        pa.array(np.full(count, answers.time, "datetime64[ns]"), pa.timestamp("ns", tz="UTC")),
        pa.array(np.full(count, answers.segment, np.int32)),
        pa.array(np.full(count, answers.close)),
        repeated([one.member for one in answers.replies]),
        pa.array(rows[:, 0].astype(np.int32)),
        *(number(column) for column in rows.T[1:]),
        repeated([one.state for one in answers.replies]),
    ]
    return pa.record_batch(columns, schema=answers_schema(levels))


def _block(said: Reply, levels: Sequence[float]) -> np.ndarray:
    """Return step, position and quantiles, NaN where there is none [steps, 2 + levels]."""
    answer = said.answer
    steps = 1 if answer is None or answer.quantiles is None else len(answer.quantiles)
    block = np.full((steps, 2 + len(levels)), np.nan)
    block[:, 0] = 0
    if answer is not None:
        block[:, 1] = answer.position
        if answer.quantiles is not None:
            block[:, 0] = np.arange(1, steps + 1)
            block[:, [2 + levels.index(level) for level in answer.levels]] = answer.quantiles
    return block


def as_document(answers: BarAnswers) -> dict[str, Any]:
    """Return one bar's answers as plain types, for a line of JSON."""
    said = {one.member: _plain(one) for one in answers.replies}
    own = said.pop(OWN)
    return {"time": iso(answers.time), "segment": answers.segment, "close": answers.close, OWN: own, "members": said}


def _plain(said: Reply) -> dict[str, Any]:
    answer = said.answer
    if answer is None:
        return {"state": said.state}
    found: dict[str, Any] = {"state": said.state, "position": answer.position}
    if answer.quantiles is not None:
        found |= {quantile_name(level): values.tolist() for level, values in zip(answer.levels, answer.quantiles.T, strict=True)}
    return found


class AnswerLog:
    """Rows of answers in an append-only file; a saved state holds the number of rows that it covers.

    Args:
        folder: of the run; the log is `answers.arrows` there, in Arrow's streaming format.
        levels: of all members' quantiles, ascending.
        rows: earlier rows to keep; later ones belong to no state and are dropped.

    Raises:
        EnsembleError: there are fewer, or the file cannot be read.
    """

    def __init__(self, folder: Path, levels: Sequence[float], rows: int = 0) -> None:
        self._path, self._table, self._levels = folder / "answers.arrows", folder / "answers.parquet", tuple(levels)
        if not self._path.is_file() and self._table.is_file():  # of a finished run that now continues
            self._reopen()
        self.rows = rows
        kept = _bytes_of(self._path, rows) if rows else 0
        self._file: BinaryIO = self._path.open("r+b" if rows else "wb")
        self._file.truncate(kept)
        self._file.seek(kept)
        if not rows:
            self._file.write(answers_schema(self._levels).serialize())

    def add(self, answers: BarAnswers) -> None:
        """Append one bar's answers."""
        batch = as_batch(answers, self._levels)
        self._file.write(batch.serialize())
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Write through to the disk, before a state covers the rows: they must survive a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> Path:
        """Write all rows to answers.parquet, atomically, and remove the log.

        Returns:
            The table's path.
        """
        self._file.close()
        with written_whole(self._table) as part, pq.ParquetWriter(part, answers_schema(self._levels)) as writer:
            held: list[pa.RecordBatch] = []
            with self._path.open("rb") as file:
                for batch in pa.ipc.open_stream(file):
                    held.append(batch)
                    if sum(map(len, held)) >= ROW_GROUP:
                        writer.write_table(pa.Table.from_batches(held))
                        held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
        self._path.unlink()
        return self._table

    def close(self) -> None:
        """Close the file without writing the table; the run can be resumed."""
        self._file.close()

    def _reopen(self) -> None:
        try:
            with written_whole(self._path) as part, part.open("wb") as file:
                file.write(answers_schema(self._levels).serialize())
                with pq.ParquetFile(self._table) as table:
                    for batch in table.iter_batches():
                        file.write(batch.cast(answers_schema(self._levels)).serialize())
        except pa.ArrowException as error:
            raise EnsembleError(f"{self._table}: cannot be read ({error}); begin anew in another out=...") from error


def _bytes_of(path: Path, rows: int) -> int:
    """Return the number of bytes of a log's first rows."""
    if not path.is_file():
        raise EnsembleError(f"{path.with_suffix('.parquet')}: is not there, nor {path.name}, of {rows} rows; begin anew in another out=...")
    with path.open("rb") as file:
        read = 0
        try:
            stream = pa.ipc.open_stream(file)
            while read < rows:
                read += stream.read_next_batch().num_rows
        except (StopIteration, OSError, pa.ArrowException) as error:  # Arrow's name for a file that ends too soon is OSError
            raise EnsembleError(f"{path}: holds {read} rows of the {rows} that were written; begin anew in another out=...") from error
        return file.tell()
