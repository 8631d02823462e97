"""Planned peaks are those of real trainings, the sizes found to fit are the largest that do, and the closed forms hold."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.reference import ROOT, SMALL, RandomWindows, Size
from tftq.memory.ledger import read_records
from tftq.memory.timeline import MemoryRecorder
from tftq.model.size import parameter_count
from tftq.plan.peaks import ALLOCATOR_BLOCK, CUBLAS_WORKSPACE, CUDA_CONTEXT
from tftq.plan.training import Planner, StagePlan
from tftq.recipe.load import load_recipe
from tftq.recipe.schema import Recipe
from tftq.spec.units import MIB
from tftq.train.build import architecture_of
from tftq.train.context import TrainingData, Workplace
from tftq.train.stages import stage_settings
from tftq.train.trainer import Trainer

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def planner(size: Size, device: str = "cpu") -> Planner:
    return Planner(size.inputs(), size.scaling(), size.target_scaling(), torch.device(device))


def measured(size: Size, recipe: Recipe) -> tuple[int, int]:
    """The peaks of an epoch of two updates and of its validation, by the real loop under the byte counter."""
    batch = recipe.train.batch_size
    with tempfile.TemporaryDirectory() as folder:
        watch = MemoryRecorder(Path(folder) / "memory.jsonl", CPU)
        with watch.recording():
            trainer = Trainer(
                size.model(recipe),
                TrainingData(RandomWindows(size, 2 * batch * recipe.train.accumulate), RandomWindows(size, batch, seed=2)),
                stage_settings(recipe, "train"),
                Workplace(Path(folder), CPU, watch.timeline),
            )
            watch.probe.reset_peak()
            trainer.fit()
        peaks = {record["phase"]: record["peak"] for record in read_records(Path(folder) / "memory.jsonl")}
    return peaks["AFTER_TRAINING"], peaks["VALIDATION_END"]


def architecture(hidden: int, form: str, *more: str) -> tuple[str, ...]:
    knots = ("model.knots=16",) if form == "knots" else ("model.knots=null",)
    return f"model.hidden={hidden}", "model.heads=4", f"model.form={form}", "model.lstm_layers=1", *knots, *more


def sized(size: Size, *overrides: str) -> Size:
    return Size(size.static, size.observed, size.known, size.lookback, size.horizon, overrides)


# hidden 32 to 256, batch 1 to 64, 20 to 225 features, every form, every precision; the large ones with few windows, for the time's sake
GRID = [
    (Size(2, 20, 4, 12, 5), 32, 64, "knots", "fp32"),
    (Size(1, 20, 4, 60, 5), 64, 16, "knots", "bf16"),
    (Size(1, 18, 2, 5, 3), 128, 8, "knots", "fp16"),
    (Size(3, 90, 10, 60, 10), 64, 1, "knots", "fp32"),
    (Size(5, 210, 10, 20, 5), 256, 1, "shared", "bf16"),
    (Size(2, 60, 4, 20, 5), 256, 2, "knots", "fp32"),
    (Size(2, 20, 4, 20, 5), 32, 32, "folded", "fp32"),
    (Size(2, 60, 4, 12, 5), 64, 4, "folded", "bf16"),
    (Size(1, 18, 2, 5, 3), 128, 2, "folded", "fp16"),
    (Size(2, 20, 4, 12, 5), 32, 16, "paper", "fp32"),
    (Size(1, 18, 2, 5, 3), 64, 2, "paper", "fp16"),
    (Size(2, 40, 8, 8, 3), 32, 2, "paper", "bf16"),
]


@pytest.mark.parametrize(("size", "hidden", "batch", "form", "precision"), GRID)
def test_within_a_twentieth_of_the_real_training(size: Size, hidden: int, batch: int, form: str, precision: str) -> None:
    shared = ("model.gates=shared",) if form == "shared" else ()
    size = sized(size, *architecture(hidden, "knots" if shared else form, *shared))
    recipe = size.recipe("none", precision, batch)
    plan = planner(size).plan(recipe)["train"]
    training, validation = measured(size, recipe)
    assert plan.update.peak_bytes == pytest.approx(training, rel=0.05)
    assert plan.validation.peak_bytes == pytest.approx(validation, rel=0.05)
    for peak in (plan.update, plan.validation):
        assert sum(peak.components.values()) == peak.peak_bytes


@pytest.mark.parametrize(("precision", "chunk"), [("fp32", 8), ("bf16", 128), ("fp16", 128)])
def test_within_a_hundredth_of_a_mamba2s_training(precision: str, chunk: int) -> None:
    size, smaller = Size(1, 20, 4, 20, 5), ("model.hidden=32", "model.layers=2", "model.head_dim=16", "model.state=16", "quant=null")
    options = [*smaller, f"model.chunk={chunk}", f"train.precision={precision}", "train.batch_size=8", "train.epochs=1"]
    recipe = load_recipe(ROOT / "recipes" / "mamba2_ref.yaml", options)
    plan = planner(size).plan(recipe)["train"]
    training, validation = measured(size, recipe)
    assert plan.update.peak_bytes == pytest.approx(training, rel=0.01)
    assert plan.validation.peak_bytes == pytest.approx(validation, rel=0.01)
    assert plan.validation.peak_bytes < plan.update.peak_bytes


LEAN = ("train.optimizer.in_backward=true", "train.clip_norm=null", "train.optimizer.name=adamw8bit", "model.gates=shared")


@pytest.mark.parametrize("options", [LEAN, ("train.accumulate=2",)])
def test_what_else_changes_the_peak_is_planned_too(options: tuple[str, ...]) -> None:
    size = sized(Size(1, 18, 2, 20, 5), *architecture(64, "knots", *options))
    recipe = size.recipe("none", "bf16", 8)
    plan = planner(size).plan(recipe)["train"]
    training, validation = measured(size, recipe)
    assert plan.update.peak_bytes == pytest.approx(training, rel=0.05)
    assert plan.validation.peak_bytes == pytest.approx(validation, rel=0.05)


@pytest.mark.parametrize("form", ["knots", "folded", "paper"])
def test_parameters_gradients_and_optimizer_in_closed_form(form: str) -> None:
    """Weights, gradients and two moments in FP32; a step counter for each parameter, and the buffers, come on top."""
    size = Size(2, 20, 4, 12, 5, (*architecture(64, form), "train.accumulate=2"))  # the second pass finds every gradient there
    recipe = size.recipe("none", "fp32", 1)
    count = parameter_count(size.inputs(), architecture_of(recipe.model))
    model = size.model(recipe)
    buffers = sum(buffer.untyped_storage().nbytes() for buffer in model.buffers())
    components = planner(size).plan(recipe)["train"].update.components
    assert components["parameters"] == pytest.approx(4 * count + buffers, rel=1e-3)
    assert components["optimizer"] == 8 * count + 4 * len(list(model.parameters()))
    assert components["gradients"] == 4 * count


MIDDLING = Size(1, 18, 2, 30, 5, architecture(32, "knots"))


def test_the_largest_forward_pass_within_a_budget_is_found() -> None:
    recipe = MIDDLING.recipe("none", "fp32", 64)
    mine = planner(MIDDLING)
    asked, least = (mine.needed_bytes(recipe, mine.plan_stage(recipe, "train", size)) for size in (64, 1))
    limit = (asked + least) // 2 // MIB + 1
    assert least < limit * MIB < asked
    recipe = with_budget(recipe, limit)
    found = mine.within_budget(recipe)["train"]
    assert 1 < found.batch_size < 64
    assert mine.needed_bytes(recipe, found) <= limit * MIB
    assert mine.needed_bytes(recipe, mine.plan_stage(recipe, "train", found.batch_size + 1)) > limit * MIB


def test_a_budget_that_holds_no_window_leaves_the_recipe_as_it_is() -> None:
    recipe = with_budget(SMALL.recipe("none", "fp32", 4), 1)
    mine = planner(SMALL, "cuda")  # where CUDA alone takes more
    plans = mine.within_budget(recipe)
    assert plans["train"].batch_size == 4
    assert mine.largest_batches(recipe, plans) == {"train": 0}


def with_budget(recipe: Recipe, budget_mb: int) -> Recipe:
    return recipe.model_copy(update={"memory": recipe.memory.model_copy(update={"budget_mb": budget_mb})})


def test_on_a_gpu_tensors_take_whole_blocks_and_cuda_takes_its_own() -> None:
    recipe = SMALL.recipe("none", "fp32", 4)
    mine = planner(SMALL, "cuda")
    plan = mine.plan(recipe)["train"]
    assert plan.update.peak_bytes % ALLOCATOR_BLOCK == plan.validation.peak_bytes % ALLOCATOR_BLOCK == 0
    assert plan.update.peak_bytes > planner(SMALL).plan(recipe)["train"].update.peak_bytes + CUBLAS_WORKSPACE
    assert mine.needed_bytes(recipe, plan) == max(plan.update.peak_bytes, plan.validation_alone.peak_bytes) + CUDA_CONTEXT
    assert planner(SMALL).needed_bytes(recipe, plan) == max(plan.update.peak_bytes, plan.validation.peak_bytes)
    half = {name: mine.plan(SMALL.recipe("none", name, 4))["train"].update.peak_bytes for name in ("fp16", "bf16")}
    assert half["fp16"] == pytest.approx(half["bf16"], rel=1e-3)  # numbers of the same size in kernels of the same kind


def test_the_optimizers_state_leaves_where_validation_would_not_fit_beside_it() -> None:
    recipe = SMALL.recipe("none", "fp32", 4)
    mine = planner(SMALL, "cuda")
    plan = mine.plan(recipe)["train"]
    assert plan.validation_alone.peak_bytes == plan.validation.peak_bytes - plan.validation.components["optimizer"]
    assert plan.validation_alone.components["optimizer"] == 0
    assert not mine.offloads(recipe, plan)
    assert mine.offloads(with_budget(recipe, 401), plan)
    large = StagePlan(4, 4096, update=plan.update, validation=plan.update.plus("activations", 1))
    assert mine.offloads(recipe, large)  # the peak of validation would be above that of training


def test_no_more_windows_are_planned_than_there_are() -> None:
    size = Size(1, 18, 2, 20, 5)
    few = replace(planner(size), windows=8, validation_windows=4)
    recipe = size.recipe("none", "fp32", 64)
    plan, small = few.plan(recipe)["train"], few.plan(size.recipe("none", "fp32", 8))["train"]
    assert plan.update.peak_bytes == small.update.peak_bytes
    assert plan.validation.peak_bytes < planner(size).plan(recipe)["train"].validation.peak_bytes
    assert plan.batch_size == 64  # what the trainer is told


def test_an_update_in_one_backward_pass_is_not_split() -> None:
    size = sized(Size(1, 18, 2, 20, 5), "train.optimizer.in_backward=true", "train.clip_norm=null", "memory.budget_mb=1")
    recipe = size.recipe("none", "fp32", 8)
    mine = planner(size)
    assert mine.within_budget(recipe)["train"].batch_size == 8
    assert mine.largest_batches(recipe, mine.plan(recipe)) == {"train": 0}
