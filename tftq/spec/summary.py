"""The content of summary.json: one class for each type of run, whose `as_dict` gives the content in the order of the fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

FLAT = {"flat": True}  # of a field: its own fields stand among those of the class that has it


class Summary:
    """Base of the classes below; a field whose default is None is left out where it is None."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        content: dict[str, Any] = {}
        assert is_dataclass(self)
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None and part.default is None:
                continue
            if part.metadata.get("flat"):
                content |= value.as_dict()
            else:
                content[part.name] = _plain(value)
        return content


def _plain(value: Any) -> Any:
    if isinstance(value, Summary):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class ValidationSummary(Summary):
    """The quality of forecasts.

    Attributes:
        windows: that were forecast.
        loss: the mean quantile loss of the scaled target.
        q_risk: quantile -> 2 · Σ pinball / Σ |target|.
        q_risk_by_step: the same for each step of the horizon.
        coverage: share of targets between the outer quantiles.
        crossing_rate: share of forecasts whose quantiles are out of order.
        baseline_q_risk: of the naive forecast, for the median alone.
    """

    windows: int
    loss: float
    q_risk: Mapping[str, float]
    q_risk_by_step: Mapping[str, Sequence[float]]
    coverage: float
    crossing_rate: float
    baseline_q_risk: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingSummary(Summary):
    """A stage of training.

    Attributes:
        updates: applied.
        skipped_updates: FP16 steps that overflowed.
        best_epoch: counted from 1; 0 where the initial model was best.
        samples_per_s: windows trained on in a second.
        batch_size: windows to a forward pass at the end.
        out_of_memory: how often memory ran out.
        start_loss: of the initial model, where that was validated.
        val: of the best epoch.
    """

    updates: int
    skipped_updates: int
    best_epoch: int
    samples_per_s: float
    batch_size: int
    out_of_memory: int
    start_loss: float | None = None
    val: ValidationSummary


@dataclass(frozen=True, kw_only=True)
class FineTuningSummary(Summary):
    """A later stage of training: QAT, or pruning with the variables that it kept and dropped and their mean selection weights."""

    training: TrainingSummary = field(metadata=FLAT)
    planned_peak_bytes: int
    kept: Mapping[str, float] | None = None
    dropped: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TablesSummary(Summary):
    """The table form of a TFT: its knots, and the variables whose curves they do not follow within the tolerance."""

    variables: int
    knots: int
    worst_curve_error: float
    above_tolerance: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class MemorySummary(Summary):
    """The memory that a run held.

    Attributes:
        source: cuda, counter or rss.
        peak_bytes: None where nothing could be measured.
        checkpoints_expected: records expected of the epochs.
        checkpoints_recorded: those of them that were written by a probe that worked.
        missing: the others, with their reasons.
        planned_peak_bytes: the peak of the plan.
        components: bytes at the peak by purpose; None for those not measured.
        ledger: stage -> its peak beside the budget of each component.
    """

    source: str
    peak_bytes: int | None
    checkpoints_expected: int
    checkpoints_recorded: int
    missing: Sequence[str]
    planned_peak_bytes: int
    components: Mapping[str, int | None] | None
    ledger: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ValidationWindows(Summary):
    """The basis for comparing runs: the number of windows, a fingerprint of their targets, and the scale of the loss."""

    count: int
    targets: str
    loss_scale: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ForecasterSummary(Summary):
    """The run of a forecaster; `target` is its unit, `models` has an entry for each exported format."""

    name: str
    status: str = "ok"
    device: str
    seed: int
    target: str
    validation_windows: ValidationWindows
    notes: Sequence[str]
    training: TrainingSummary = field(metadata=FLAT)
    prune: FineTuningSummary | None = None
    tables: TablesSummary | None = None
    quant: Mapping[str, Any] | None = None
    qat: FineTuningSummary | None = None
    memory: MemorySummary
    models: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class AgentSummary(Summary):
    """The run of an agent; `kind` is its algorithm, `val` its earnings beside those of fixed positions."""

    name: str
    status: str = "ok"
    kind: str
    device: str
    seed: int
    steps: int
    updates: int
    steps_per_s: float
    trained_parameters: int
    val: Mapping[str, Any]
    notes: Sequence[str]
    memory: MemorySummary
    models: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class MemberSummary(Summary):
    """A member of an ensemble; `states` counts bars by the member's replies."""

    kind: str
    path: str
    weight: float
    planned_bytes: int
    measured_bytes: int | None
    latency_ms: Mapping[str, float | int]
    states: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class EnsembleSummary(Summary):
    """The run of an ensemble; `backtest` is missing where its answers could not be judged."""

    name: str
    status: str = "ok"
    rule: str
    bars: int
    states: Mapping[str, int]
    notes: Sequence[str]
    members: Mapping[str, MemberSummary]
    memory: Mapping[str, Any]
    latency_ms: Mapping[str, float | int]
    backtest: Mapping[str, Any] | None = None
    left_out_bars: Mapping[str, int]
    resumed_after_bars: int
