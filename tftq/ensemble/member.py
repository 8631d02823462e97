"""Members: each runs its model on a bar and returns an answer; loaded or not, it keeps the state of its next answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tftq.data.features.table import CLOCK_COLUMNS
from tftq.ensemble.answers import Answer
from tftq.ensemble.interface import COLUMNS, Interface, foreign_interface, own_interface
from tftq.ensemble.market import Market
from tftq.errors import EnsembleError, GateError, MetadataError, NonFiniteError, PredictError
from tftq.io import sha256
from tftq.serve.find import find_model, model_folder
from tftq.serve.measure import measure, measure_pair
from tftq.serve.proof import proven_bytes
from tftq.serve.session import FLOATS, InferenceSession, open_session, require_runtime
from tftq.serve.stream import Stream
from tftq.spec.formats import FORMATS, STREAM
from tftq.spec.metadata import HalfMetadata, read_metadata

if TYPE_CHECKING:
    from tftq.ensemble.recipe import MemberRecipe


class Member(ABC):
    """One model of an ensemble.

    Args:
        name: its name.
        kind: its type.
        files: its model, or both halves of a streaming pair.
        interface: their inputs and output.
        threads: within an operator.
        shared: whether it computes in the arena of all members.

    Attributes:
        hashes: SHA-256 of each of its files, hexadecimal: a state belongs to no other model.
    """

    def __init__(self, name: str, kind: str, files: tuple[Path, ...], interface: Interface, *, threads: int, shared: bool) -> None:
        self.name, self.kind, self.files, self.interface = name, kind, files, interface
        self._threads, self._shared = threads, shared
        self._written = [_written(path) for path in files]
        self.hashes = [sha256(path) for path in files]

    def ready(self, market: Market) -> bool:
        """Check whether the segment has the bars that an answer needs."""
        return market.age >= self.interface.needs

    def require_same_files(self) -> None:
        """Check that the files are the same as at the start of the run; files not written since are not read.

        Raises:
            EnsembleError: a file has changed.
            OSError: a file is missing.
        """
        written = [_written(path) for path in self.files]
        if written == self._written:
            return
        for path, known in zip(self.files, self.hashes, strict=True):
            if sha256(path) != known:
                raise EnsembleError(f"{path} was replaced since the run began; put it back, or begin a run with the new one")
        self._written = written

    @property
    @abstractmethod
    def loaded(self) -> bool:
        """Return whether its model is in memory."""

    @abstractmethod
    def load(self) -> None:
        """Load the model."""

    @abstractmethod
    def unload(self) -> None:
        """Unload the model; later answers are the same as without."""

    @abstractmethod
    def answer(self, market: Market) -> Answer:
        """Answer at the newest bar; the member must be loaded and ready.

        Raises:
            NonFiniteError: the model's output is not finite.
            Exception: any error of the runtime or of reading the answer.
        """

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the state from which a restart gives the same answers."""

    @abstractmethod
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from a `state` of the same files."""


class OnePiece(Member):
    """A model that takes whole windows: a forecaster, an agent, or a model of another tool."""

    def __init__(self, name: str, kind: str, files: tuple[Path, ...], interface: Interface, *, threads: int, shared: bool) -> None:
        super().__init__(name, kind, files, interface, threads=threads, shared=shared)
        self._session: InferenceSession | None = None
        self._inputs: dict[str, tuple[bool, type[np.floating[Any]]]] = {}  # whether it is flat, and its indices
        self._history = {key: [COLUMNS.index(name) for name in columns] for key, columns in interface.history.items()}
        self._future = {key: [CLOCK_COLUMNS.index(name) for name in columns] for key, columns in interface.future.items()}
        self._position, self._segment, self._age = 0.0, -1, -1  # its newest position, and that position's bar

    @property
    def loaded(self) -> bool:
        """See `Member`."""
        return self._session is not None

    def load(self) -> None:
        """See `Member`.

        Raises:
            EnsembleError: the file's inputs or outputs differ from its interface.
        """
        session = open_session(self.files[0], threads=self._threads, spinning=False, shared=self._shared)
        position = self.interface.position
        wanted = {*self._history, *self._future, *([] if position is None else [position])}
        if {node.name for node in session.get_inputs()} != wanted:
            found = ", ".join(node.name for node in session.get_inputs())
            raise EnsembleError(f"member {self.name}: {self.files[0]} takes {found}; given are {', '.join(sorted(wanted))}")
        if self.interface.output not in (outputs := [node.name for node in session.get_outputs()]):
            raise EnsembleError(f"member {self.name}: {self.files[0]} gives {', '.join(outputs)}; wanted is {self.interface.output}")
        if other := [f"{node.name} {node.type}" for node in session.get_inputs() if node.type not in FLOATS]:
            raise EnsembleError(f"member {self.name}: {self.files[0]} takes {', '.join(other)}; allowed: {', '.join(FLOATS)}")
        self._inputs = {node.name: (len(node.shape) == 2, FLOATS[node.type]) for node in session.get_inputs()}
        self._session = session

    def unload(self) -> None:
        """See `Member`."""
        self._session = None

    def answer(self, market: Market) -> Answer:
        """See `Member`."""
        assert self._session is not None
        interface = self.interface
        held = self._position if (self._segment, self._age) == (market.segment, market.age - 1) else 0.0  # as in the backtest's ledger
        past, ahead = market.history(interface.lookback), market.future(interface.horizon)
        fed = {key: past[:, places] for key, places in self._history.items()}  # [lookback, columns]
        fed |= {key: ahead[:, places] for key, places in self._future.items()}  # [horizon, columns]
        if interface.position is not None:
            fed[interface.position] = np.array([held], np.float32)
        batch = {}
        for key, (in_a_row, number) in self._inputs.items():
            batch[key] = (fed[key].reshape(1, -1) if in_a_row else fed[key][None]).astype(number)
        output = np.asarray(self._session.run([interface.output], batch)[0])
        if not np.isfinite(output).all():
            raise NonFiniteError(f"{interface.output} is not finite")
        answer = interface.read(output)
        self._position, self._segment, self._age = answer.position, market.segment, market.age
        return answer

    def state(self) -> dict[str, np.ndarray]:
        """See `Member`."""
        return {"position": np.array(self._position), "segment": np.array(self._segment), "age": np.array(self._age)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """See `Member`."""
        self._position, self._segment, self._age = float(state["position"]), int(state["segment"]), int(state["age"])


class Streaming(Member):
    """A streaming pair: when the window moves by a bar, only that bar is read."""

    def __init__(self, name: str, kind: str, files: tuple[Path, ...], interface: Interface, *, threads: int, shared: bool) -> None:
        super().__init__(name, kind, files, interface, threads=threads, shared=shared)
        self._stream: Stream | None = None
        self._kept: dict[str, np.ndarray] = {}  # the state of the stream while it is not loaded
        (history,), (future,) = interface.history.values(), interface.future.values()
        self._history, self._future = [COLUMNS.index(name) for name in history], [CLOCK_COLUMNS.index(name) for name in future]
        self._segment = self._age = -1  # of the newest bar that it took

    @property
    def loaded(self) -> bool:
        """See `Member`."""
        return self._stream is not None

    def load(self) -> None:
        """See `Member`."""
        stream = Stream(self.files, threads=self._threads, shared=self._shared)
        if self._kept:
            stream.restore(self._kept)
        self._stream = stream

    def unload(self) -> None:
        """See `Member`."""
        if self._stream is not None:
            self._kept = self._stream.state()
        self._stream = None

    def answer(self, market: Market) -> Answer:
        """See `Member`."""
        assert self._stream is not None
        lookback = self.interface.lookback
        new = market.age - self._age if market.segment == self._segment else lookback
        if new >= lookback:  # its window does not overlap this one
            self._stream.reset()
            new = lookback
        self._segment = -1  # a window that lacks some of them would have a gap
        self._stream.push(market.history(new)[:, self._history])
        self._segment, self._age = market.segment, market.age
        return self.interface.read(self._stream.forecast(market.future(self.interface.horizon)[:, self._future]))

    def state(self) -> dict[str, np.ndarray]:
        """See `Member`."""
        kept = self._kept if self._stream is None else self._stream.state()
        return {**kept, "segment": np.array(self._segment), "age": np.array(self._age)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """See `Member`."""
        self._segment, self._age = int(state["segment"]), int(state["age"])
        self._kept = {key: value for key, value in state.items() if key not in ("segment", "age")}
        if self._stream is not None and self._kept:
            self._stream.restore(self._kept)


def open_member(name: str, recipe: MemberRecipe, *, threads: int, shared: bool) -> Member:
    """Find a member's files and read their interface; load nothing.

    Args:
        name: of the member.
        recipe: its part of the recipe.
        threads: within an operator.
        shared: whether it computes in the arena of all members.

    Raises:
        EnsembleError: a file that is missing, is not a model, or cannot be fed with bars.
        ProviderError: ONNX Runtime is too old for a file.
    """
    files = _files(name, recipe)
    if recipe.foreign is not None:
        return OnePiece(name, "foreign", files, foreign_interface(name, recipe.foreign), threads=threads, shared=shared)
    try:
        (metadata, *others) = [read_metadata(path) for path in files]
    except MetadataError as error:
        raise EnsembleError(f"member {name}: {error}") from error
    if metadata is None:
        raise EnsembleError(f"member {name}: {files[0]} says nothing of its columns; say it in members.{name}.foreign")
    if isinstance(metadata, HalfMetadata) != bool(others):
        raise EnsembleError(f"member {name}: {files[0]} is one half of a streaming pair; give the folder that holds both")
    require_runtime(files[0], metadata.oldest_runtime)
    interface, kind = own_interface(name, metadata), metadata.model
    if others:
        return Streaming(name, f"{kind}, streaming", files, interface, threads=threads, shared=shared)
    return OnePiece(name, kind, files, interface, threads=threads, shared=shared)


def _written(path: Path) -> tuple[int, int, int]:
    """Return a fingerprint that changes when a file is written or replaced."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _files(name: str, recipe: MemberRecipe) -> tuple[Path, ...]:
    if not recipe.path.exists():
        raise EnsembleError(f"member {name}: no {recipe.path}; give a model, a folder of models or of a streaming pair, or train it first")
    if recipe.path.is_dir() and recipe.format in (None, STREAM):
        pair = tuple(model_folder(recipe.path) / file for file in FORMATS[STREAM].files)
        there = [path.is_file() for path in pair]
        if all(there):
            return pair
        if any(there) or recipe.format == STREAM:
            raise EnsembleError(f"member {name}: {pair[0].parent} lacks {pair[there.index(False)].name} of a streaming pair")
    try:
        return (find_model(recipe.path, recipe.format),)
    except PredictError as error:
        raise EnsembleError(f"member {name}: {error}") from error


def planned_bytes(member: Member, note: Callable[[str], None]) -> int:
    """Return the resident memory of a member, in bytes: measured when it was exported, or else now, in a fresh process.

    Args:
        member: not loaded.
        note: called with a sentence about an export's measurement that does not count.

    Raises:
        EnsembleError: a file that cannot be measured.
    """
    name = FORMATS[STREAM].proof_file if isinstance(member, Streaming) else f"{member.files[0].stem}.export.json"
    proof = member.files[0].with_name(name)
    if proof.is_file():
        if (proven := proven_bytes(proof, member.hashes)) is not None:
            return proven
        note(f"{member.name}: measured anew what it takes, for {proof} does not tell it of this very model")
    try:
        if isinstance(member, Streaming):
            return int(measure_pair(*member.files, threads=1).cost["rss_bytes"])
        return int(measure(*member.files, threads=1, shapes=member.interface.shapes).cost["rss_bytes"])
    except GateError as error:
        raise EnsembleError(f"member {member.name}: what it takes is not known: {error}") from error
