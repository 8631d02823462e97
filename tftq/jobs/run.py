"""Run a forecaster's recipe: train, quantize, export and check ONNX models, and report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import naive_q_risk
from tftq.export.forecaster import Exported, export_model
from tftq.export.pair import ExportedPair, export_pair
from tftq.export.publish import origin
from tftq.jobs.folder import identity
from tftq.jobs.quantize import Quantizing
from tftq.jobs.training import TrainingJob
from tftq.model.batch import Batch, gather
from tftq.model.forecaster import Forecaster
from tftq.model.pruning import prune
from tftq.model.size import parameter_count
from tftq.model.tabulate import TOLERANCE, TabulatedVariable, tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.plan.export import EXPORT_WINDOWS
from tftq.plan.phases import RunPlan, plan_phases
from tftq.plan.training import Planner, StagePlan
from tftq.quant.quantizers import learn_ranges
from tftq.quant.schedule import QatSchedule
from tftq.recipe.load import recipe_hash
from tftq.recipe.schema import Recipe
from tftq.report.console import (
    exported_table,
    planned_line,
    pruned_line,
    tables_line,
    validation_line,
)
from tftq.report.forecaster import write_report
from tftq.spec.formats import FORMATS, STREAM, Format, Source
from tftq.spec.stages import STAGES
from tftq.spec.summary import FineTuningSummary, ForecasterSummary, TablesSummary, ValidationWindows
from tftq.train.build import architecture_of, build_model
from tftq.train.context import TrainingData, Workplace
from tftq.train.device import choose_device, gpu_uuid, seed_everything
from tftq.train.stages import qat_schedule, stage_settings
from tftq.train.state import Training
from tftq.train.trainer import Trainer


@dataclass(frozen=True)
class ForecasterJob(TrainingJob[Recipe]):
    """The run of a forecaster.

    Args:
        planner: for its data and device.
        plans: of its stages of training.
        resumed: whether it was interrupted before.
    """

    planner: Planner
    plans: dict[str, StagePlan]
    resumed: bool


def run(recipe: Recipe, *, resume: bool = False, console: Console | None = None) -> ForecasterSummary:
    """Run a recipe of a forecaster.

    Args:
        recipe: of the run.
        resume: resume an interrupted run of this recipe in its folder `out`.
        console: where to print; standard output by default.

    Returns:
        The content of summary.json.

    Raises:
        TftqError: the recipe, the data, the folder, the device or an exported model cannot be used.
    """
    device = choose_device(recipe.device)
    Precision(recipe.train.precision, device).check()
    seed_everything(recipe.seed)

    data = load_datasets(recipe.data)
    data.notes.extend(_notes(recipe, len(data.train)))
    schedule = qat_schedule(recipe, len(data.train)) if recipe.quant.method == "qat" else None
    planner = Planner(data.train.inputs, data.scaling, data.target_scaling, device, len(data.train), len(data.validation))
    plans = planner.within_budget(recipe)
    plan = RunPlan(plan_phases(recipe, planner, plans), recipe.memory, device)
    more = {"planner": planner, "plans": plans, "resumed": resume}
    job = ForecasterJob.open(recipe, device, data, plan, resume=resume, console=console, **more)
    _announce_plans(job)
    advice = "out of memory outside training, where no batch can be halved; lower model.hidden, or a TFT's model.knots, or free memory"
    return job.train(lambda: _stages(job, schedule), write_report, advice=advice)


def _stages(job: ForecasterJob, schedule: QatSchedule | None) -> ForecasterSummary:
    """Train; prune and tabulate a TFT; calibrate, train quantized; and export after each stage that makes a format."""
    recipe, whole = job.recipe, job
    pruned = tables = sensitivity = qat = None

    model = build_model(recipe.model, job.data)
    training = _train(job, model)
    if recipe.quant.prune is not None:
        assert isinstance(model, TemporalFusionTransformer)
        model, weights = prune(model.eval(), recipe.quant.prune.keep, partial(_rows_once, job, training.batch_size))
        job = replace(job, data=job.data.without(model.inputs.left_out))
        tuned = _fine_tune(job, model, "prune", "pruned and trained on")
        pruned = _pruning_summary(job, tuned, weights, recipe.quant.prune.keep)
        job.console.print_line(pruned_line(training.validation.loss, pruned))
    if isinstance(model, TemporalFusionTransformer):
        model, curves = tabulate(model.cpu())  # QAT trains the tables; the curves they came from need not stay in memory
        tables = _tables_summary(curves)
        job.console.print_line(tables_line(curves))
    exported = _export_from(job, model, "training")

    if recipe.quant.method != "none":
        quantizing = Quantizing(recipe.quant, model, job.data.train, job.device, training.batch_size)
        prepared, sensitivity = quantizing.quantize(job.folder, job.console)
        exported |= _export_from(job, prepared, "calibration")
        if schedule is not None:
            tuned = _train_quantized(job, prepared, schedule)
            qat = FineTuningSummary(training=tuned.summary(), planned_peak_bytes=_planned_peak(job, "qat"))
            exported |= _export_from(job, prepared, "qat")

    final = model if recipe.quant.method == "none" else prepared
    exported |= _export_from(job, final, "result")
    if STREAM in recipe.formats:
        assert isinstance(final, TemporalFusionTransformer)
        exported[STREAM] = _export_stream(job, final, exported[recipe.result])

    if recipe.export.publish:
        job.publish(exported)
    memory = job.memory_summary(max(_planned_peak(job, stage) for stage in job.plans))
    job.console.print_table(exported_table(exported, naive_q_risk(job.data.validation)))
    quant = None if sensitivity is None else sensitivity.as_dict()
    models = {kind: made.summary() for kind, made in exported.items()}
    return _summary(whole, training, prune=pruned, tables=tables, quant=quant, qat=qat, memory=memory, models=models)


def _summary(job: ForecasterJob, training: Training, **stages: Any) -> ForecasterSummary:
    """Summarize a run, before anything was pruned from its data; `stages` are the fields of the later stages."""
    validation, summary = job.data.validation, training.summary()
    baseline = replace(summary.val, baseline_q_risk={"0.5": naive_q_risk(validation)})
    return ForecasterSummary(
        name=job.recipe.name,
        device=str(job.device),
        seed=job.recipe.seed,
        target=validation.target_unit,
        validation_windows=ValidationWindows(
            count=len(validation), targets=validation.target_fingerprint(), loss_scale=job.data.target_scaling.scale.tolist()
        ),
        notes=job.data.notes,
        training=replace(summary, val=baseline),
        **stages,
    )


def _pruning_summary(job: ForecasterJob, tuned: Training, weights: Mapping[str, float], keep: int) -> FineTuningSummary:
    """Summarize pruning.

    Args:
        job: the run.
        tuned: the training afterwards.
        weights: mean selection weight of every variable, the heaviest first.
        keep: how many of them were kept.
    """
    kept, dropped = dict(islice(weights.items(), keep)), dict(islice(weights.items(), keep, None))
    return FineTuningSummary(training=tuned.summary(), planned_peak_bytes=_planned_peak(job, "prune"), kept=kept, dropped=dropped)


def _tables_summary(curves: Sequence[TabulatedVariable]) -> TablesSummary:
    return TablesSummary(
        variables=len(curves),
        knots=sum(curve.knots for curve in curves),
        worst_curve_error=max(curve.error for curve in curves),
        above_tolerance=[curve.name for curve in curves if curve.error > TOLERANCE],
    )


def _planned_peak(job: ForecasterJob, stage: str) -> int:
    """Return the planned peak of a stage, in bytes."""
    return job.planner.peak_bytes(job.recipe, job.plans[stage])


def _train(job: ForecasterJob, model: Forecaster) -> Training:
    """Train in floating point, in place."""
    with job.watch.recording(model):
        training = _trainer(job, model, "train", job.folder.path).fit(resume=_resumable(job, job.folder.path))
    job.console.print_line(validation_line("trained", training, naive_q_risk(job.data.validation)))
    return training


def _train_quantized(job: ForecasterJob, prepared: Forecaster, schedule: QatSchedule) -> Training:
    """Train the tables and everything else through fake quantization, in place."""
    if job.recipe.quant.qat.ranges == "learn":
        learn_ranges(prepared)
    return _fine_tune(job, prepared, "qat", "trained quantized", schedule)


def _fine_tune(job: ForecasterJob, model: Forecaster, stage: str, words: str, schedule: QatSchedule | None = None) -> Training:
    """Train a changed model further, in place; it ends no worse than it began."""
    folder = job.folder.path / STAGES[stage].folder
    job.watch.timeline.stage = stage
    seed_everything(job.recipe.seed)  # exports in between draw random numbers too: their number must not change training
    with job.watch.recording(model.train()):
        training = _trainer(job, model, stage, folder, schedule).fit(resume=_resumable(job, folder))
    job.console.print_line(validation_line(words, training, naive_q_risk(job.data.validation)))
    return training


def _trainer(job: ForecasterJob, model: Forecaster, stage: str, folder: Path, schedule: QatSchedule | None = None) -> Trainer:
    recipe, plan = job.recipe, job.plans[stage]
    on_cpu = job.planner.validates_on_cpu(recipe, plan)
    settings = replace(
        stage_settings(recipe, stage),
        validate=recipe.validate.model_copy(update={"device": "cpu"}) if on_cpu else recipe.validate,
        forward_batch=plan.batch_size,
        offload=job.planner.offloads(recipe, plan),
        best_from=schedule.fake_quant if schedule else 0,
    )
    trainer = Trainer(
        model,
        TrainingData(job.data.train, job.data.validation, job.data.train.fingerprint()),
        settings,
        Workplace(folder, job.device, job.watch.timeline, identity(recipe)),
        on_update=(lambda update: schedule.apply(model, update)) if schedule else (lambda update: None),
    )
    job.watch.follow(trainer.model, trainer.optimizer)
    return trainer


def _resumable(job: ForecasterJob, folder: Path) -> bool:
    """Check whether this stage had begun when the run was interrupted."""
    return job.resumed and (folder / "checkpoints" / "last.pt").exists()


def _rows_once(job: ForecasterJob, batch_size: int) -> Iterator[Batch]:
    """Yield training windows a lookback apart: they hold no row twice, and variable selection of a row depends on no other row."""
    train = job.data.train
    for indices in torch.arange(0, len(train), train.inputs.lookback).split(batch_size):
        yield gather(train, indices, job.device)


def _export_from(job: ForecasterJob, model: Forecaster, source: Source) -> dict[Format, Exported]:
    """Export the formats in one piece whose weights come from a stage."""
    rows = [FORMATS[name] for name in job.recipe.formats]
    return {row.name: _export(job, model, row.name) for row in rows if row.source == source and not row.is_pair}


def _export(job: ForecasterJob, model: Forecaster, kind: Format) -> Exported:
    recipe = job.recipe
    exported = export_model(
        model.cpu(),
        kind,
        job.folder.path / "exports",
        job.data.validation,
        job.data.test,
        batch_size=min(recipe.train.batch_size, EXPORT_WINDOWS),
        origin=origin(recipe.name, recipe_hash(recipe), recipe.data, job.data.train),
        gpu=gpu_uuid(job.device),
    )
    job.console.print_line(f"{kind}: passed the gate, {exported.file_bytes / 1e6:.2f} MB")
    return exported


def _export_stream(job: ForecasterJob, model: TemporalFusionTransformer, one_piece: Exported) -> ExportedPair:
    recipe = job.recipe
    exported = export_pair(
        model.cpu(),
        recipe.result,
        one_piece.path,
        job.data.validation,
        job.data.test,
        batch_size=min(recipe.train.batch_size, EXPORT_WINDOWS),
        origin=origin(recipe.name, recipe_hash(recipe), recipe.data, job.data.train),
    )
    job.console.print_line(f"stream, of {recipe.result}: passed the gate, {exported.file_bytes / 1e6:.2f} MB")
    return exported


def _notes(recipe: Recipe, windows: int) -> list[str]:
    """List where the run differs from the text of its recipe."""
    notes = []
    if recipe.quant.method != "none" and recipe.quant.calibration_windows > windows:
        notes.append(
            f"calibration takes all {windows} training windows; quant.calibration_windows asks for {recipe.quant.calibration_windows}"
        )
    if recipe.quant.prune is not None and recipe.train.optimizer.groups:
        notes.append("train.optimizer.groups count until variables are pruned; then everything is trained on at quant.prune.lr")
    if recipe.quant.method == "qat" and recipe.train.optimizer.groups:
        notes.append("train.optimizer.groups count while training in floating point; QAT trains everything at quant.qat.lr")
    return notes


def _announce_plans(job: ForecasterJob) -> None:
    """Print the size of the model, the planned peaks, and the changes that make them fit."""
    recipe, console = job.recipe, job.console
    count = parameter_count(job.data.train.inputs, architecture_of(recipe.model))
    form = recipe.model.form if recipe.model.kind == "tft" else recipe.model.kind
    console.print_line(f"{count:,} parameters ({form}), {len(job.data.train.inputs.history)} history variables")
    for stage, plan in job.plans.items():
        console.print_line(planned_line(stage, plan, recipe.memory.budget_mb))
        if plan.batch_size < recipe.train.batch_size:
            windows = f"{plan.batch_size} window{'s' if plan.batch_size > 1 else ''}"
            console.print_line(f"  forward batches of {windows}, so that the planned peak stays within memory.budget_mb")
        if job.planner.validates_on_cpu(recipe, plan) and recipe.validate.device == "auto":
            why = f"{plan.validation_batch} windows together are planned above memory.budget_mb"
            console.print_line(f"  validated on the CPU: {why}; a lower validate.batch_size stays on {job.device}")
