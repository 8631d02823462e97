"""Judge the result of a run beside the naive forecast."""

from dataclasses import dataclass

from tftq.report.run_files import RunFiles
from tftq.spec.formats import FORMATS

LEVEL = 0.01  # a relative difference of P50 risks below this is no difference
COVERAGE_SLACK = 0.05  # between the share of outcomes that an interval should contain and the share that it contains
OTHER_FORMS = {row.name for row in FORMATS.values() if row.source == "result"}  # of a model that is listed before them


@dataclass(frozen=True)
class Outcome:
    """The last exported model, or the trained one if none was exported, beside the naive forecast.

    Attributes:
        name: the format, or "the trained model".
        risk: the P50 q-risk on the validation windows, `naive_risk` that of the naive forecast.
        coverage: the share of outcomes between the outer quantiles, `nominal_coverage` the share that they are meant to contain; 0 for one
            quantile.
        baseline: a description of the naive forecast.
        complete: whether every memory record is there.
    """

    name: str
    risk: float
    naive_risk: float
    coverage: float
    nominal_coverage: float
    baseline: str
    complete: bool

    @classmethod
    def of(cls, files: RunFiles) -> "Outcome":
        """Judge a run by its files."""
        validation, memory, data = files.summary["val"], files.summary["memory"], files.recipe["data"]
        entries = {"the trained model": validation, **files.summary["models"]}
        name, entry = [(name, entry) for name, entry in entries.items() if name not in OTHER_FORMS][-1]
        levels = sorted(map(float, validation["q_risk"]))
        return cls(
            name,
            entry["q_risk"]["0.5"],
            validation["baseline_q_risk"]["0.5"],
            entry["coverage"],
            levels[-1] - levels[0],
            "no change" if data["kind"] == "bars" else f"the value {data['season']} rows earlier",
            memory["checkpoints_recorded"] == memory["checkpoints_expected"],
        )

    @property
    def headline(self) -> str:
        """State whether the forecasts beat the naive forecast."""
        if self.risk > (1 + LEVEL) * self.naive_risk:
            return "The model does not beat the naive forecast"
        return "The model beats the naive forecast" if self._beats else "The model is level with the naive forecast"

    @property
    def difference(self) -> str:
        """Describe the risk in proportion to the naive one; empty if the naive forecast makes no error."""
        if not self.naive_risk:
            return ""
        return f" ({abs(self.risk / self.naive_risk - 1):.1%} {'above' if self.risk > self.naive_risk else 'below'})"

    @property
    def interval(self) -> str:
        """Describe whether the interval is as wide as it should be."""
        if self.coverage > self.nominal_coverage + COVERAGE_SLACK:
            return "too wide"
        return "too narrow" if self.coverage < self.nominal_coverage - COVERAGE_SLACK else "about right"

    @property
    def good(self) -> bool:
        """Return whether the naive forecast is beaten and every memory record is present."""
        return self._beats and self.complete

    @property
    def _beats(self) -> bool:
        return self.risk < (1 - LEVEL) * self.naive_risk
