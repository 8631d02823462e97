"""What stands in summary.json: names, order, and what is left out."""

from tftq.spec.summary import EnsembleSummary, FineTuningSummary, MemberSummary, TrainingSummary, ValidationSummary

VALIDATION = ValidationSummary(windows=3, loss=0.5, q_risk={"0.5": 1.0}, q_risk_by_step={"0.5": [1.0]}, coverage=0.8, crossing_rate=0.0)
TRAINING = TrainingSummary(
    updates=2, skipped_updates=0, best_epoch=1, samples_per_s=9.0, batch_size=32, out_of_memory=0, start_loss=0.7, val=VALIDATION
)


def test_a_stage_stands_flat_and_without_what_it_lacks() -> None:
    found = FineTuningSummary(training=TRAINING, planned_peak_bytes=8).as_dict()
    counts = ["updates", "skipped_updates", "best_epoch", "samples_per_s", "batch_size", "out_of_memory"]
    assert list(found) == [*counts, "start_loss", "val", "planned_peak_bytes"]
    assert list(found["val"]) == ["windows", "loss", "q_risk", "q_risk_by_step", "coverage", "crossing_rate"]


def test_what_was_not_measured_is_null() -> None:
    latency = {"median": 0.0, "p99": 0.0, "bars": 0}
    member = MemberSummary(kind="tft", path="a.onnx", weight=1.0, planned_bytes=1, measured_bytes=None, latency_ms=latency, states={})
    summary = EnsembleSummary(
        name="four", rule="vote", bars=0, states={}, notes=[], members={"a": member}, memory={}, latency_ms=latency, left_out_bars={},
        resumed_after_bars=0,
    ).as_dict()  # fmt: skip
    assert list(summary["members"]["a"].items())[4] == ("measured_bytes", None)
    assert list(summary)[:3] == ["name", "status", "rule"] and "backtest" not in summary
