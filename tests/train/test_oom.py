"""Memory that runs out, injected at chosen calls: what is seen again, what is left, and that the result is as if it had fitted."""

import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tftq.train.trainer
from tests.model.small import small_model
from tests.train.stand_ins import RealWindows, TinyModel, TinyWindows, metrics_lines, tiny_trainer
from tftq.errors import OutOfMemoryError
from tftq.memory.counter import ByteCounter
from tftq.model.recompute import recomputing
from tftq.model.tabulate import tabulate
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.quant.quantizers import ActivationQuantizer, quantizers
from tftq.recipe.schema import OptimizerRecipe
from tftq.train.oom import explain_out_of_memory, out_of_memory, until_it_fits
from tftq.train.trainer import Trainer

CPU = torch.device("cpu")
CUDA_WORDS = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB of which 1.14 GiB is free."

# As torch, cuBLAS, cuDNN, the driver, C++ and the operating system word it.
SHORTAGES = [
    torch.OutOfMemoryError(CUDA_WORDS),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.15 GB, other allocations: 384.00 KB, max allowed: 9.07 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1131, please report a bug'),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000000 "
        "bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("[enforce fail at alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to allocate 198180864 bytes."),
    RuntimeError("std::bad_alloc"),
    OSError(12, "Cannot allocate memory"),
    MemoryError(),
]


def wrapped(how: Callable[[Exception], None], error: Exception) -> BaseException:
    try:
        try:
            raise error
        except Exception as caught:
            how(caught)
    except Exception as outer:
        return outer
    raise AssertionError


def raise_from(error: Exception) -> None:
    raise ValueError("a layer failed") from error


def raise_in_handler(error: Exception) -> None:
    raise KeyError("cleaning up failed too")


def raise_from_none(error: Exception) -> None:
    raise ValueError("something else") from None


def raise_ours(error: Exception) -> None:
    raise OutOfMemoryError("nothing is left to try") from error


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: str(error)[:30] or type(error).__name__)
def test_memory_that_ran_out_is_told_by_type_or_words_and_within_other_errors(error: Exception) -> None:
    words = out_of_memory(error)
    assert words is not None and words.startswith(type(error).__name__) and len(words) <= 160
    for how in (raise_from, raise_in_handler):
        assert out_of_memory(wrapped(lambda caught, how=how: raise_from(wrapped(how, caught)), error)) == words  # type: ignore[arg-type]
    assert out_of_memory(wrapped(raise_from_none, error)) is None
    assert out_of_memory(wrapped(raise_ours, error)) is None, "it says already what is to be done"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ValueError("the word memory, or out of memory, in an error about something else"),
        OSError(28, "No space left on device"),
        OutOfMemoryError("out of memory"),
    ],
    ids=str,
)
def test_other_errors_are_other_errors(error: Exception) -> None:
    assert out_of_memory(error) is None
    looped = RuntimeError("one")
    looped.__context__ = error
    error.__context__ = looped
    assert out_of_memory(looped) is None


def test_the_tensors_of_a_failed_attempt_are_gone_before_anything_is_done_about_it() -> None:
    """Live bytes are those before, also where a cycle or a graph held them; and each failed attempt is reported once."""
    weight = nn.Parameter(torch.ones(100, 100))
    seen: list[tuple[str, int]] = []
    with ByteCounter() as counter:
        before = counter.live_bytes

        def work() -> str:
            graph = (weight * torch.ones(100, 100)).exp().sum()
            kept: list[Any] = [graph]
            kept.append(kept)  # a cycle, which waits for the collector
            if len(seen) < 2:
                raise torch.OutOfMemoryError(CUDA_WORDS)
            return f"peak {counter.peak_bytes > before}"

        def give_way(reason: str) -> None:
            seen.append((reason, counter.live_bytes - before))

        assert until_it_fits(work, give_way, CPU) == "peak True"
    assert [left for _, left in seen] == [0, 0]
    assert all(reason.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB") for reason, _ in seen)


def test_an_error_of_another_kind_passes_and_nothing_gives_way() -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        until_it_fits(work, lambda reason: pytest.fail("no reason to"), CPU)
    with pytest.raises(ZeroDivisionError), explain_out_of_memory("it does not fit"):
        work()


class Cramped(TinyModel):
    """Runs out of memory in training where a batch is larger than `room`, or at the forward passes of given numbers.

    It holds tensors when it does, has drawn random numbers of every kind, and has moved what it observes.
    """

    def __init__(self, *, room: int = 1_000_000, fail_at: tuple[int, ...] = (), backward: bool = False, **options: Any) -> None:
        super().__init__(**{"dropout": 0.5, **options})
        self.room, self.fail_at, self.backward = room, fail_at, backward
        self.calls = 0
        self.quantizer = ActivationQuantizer()
        self.quantizer.cover(-1.0, 1.0)
        self.quantizer.observing = True

    def forward(self, history: Tensor, future: Tensor, static: Tensor | None = None) -> Tensor:
        self.quantizer.enabled = False
        forecast = super().forward(history, future, static)
        if not self.training:
            return forecast
        self.calls += 1
        forecast = forecast * random.random() * float(np.random.random())  # what a module may draw from
        self.quantizer(forecast)
        if len(history) > self.room or self.calls - 1 in self.fail_at:
            if not self.backward:
                held = forecast.exp()
                raise torch.OutOfMemoryError(f"{CUDA_WORDS} {held.shape}")
            forecast.register_hook(lambda gradient: _raise(RuntimeError("CUDA error: out of memory")))
        return forecast

    def training_batches(self) -> list[int]:
        return [batch for training, batch in self.seen if training]


def _raise(error: Exception) -> None:
    raise error


def seed_everything() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


def fitted(folder: Path, model: Cramped, **options: Any) -> tuple[Trainer, TinyWindows]:
    windows = TinyWindows(14)
    trainer = tiny_trainer(folder, model, train=windows, **{"batch_size": 8, "epochs": 2, "optimizer": OptimizerRecipe(lr=1e-2), **options})
    seed_everything()
    trainer.fit()
    return trainer, windows


def assert_same_result(ours: Trainer, theirs: Trainer) -> None:
    mine, other = torch.load(ours.checkpoints.last), torch.load(theirs.checkpoints.last)
    assert all(torch.equal(value, other["model"][name]) for name, value in mine["model"].items())
    for index, state in mine["optimizer"]["state"].items():
        assert all(torch.equal(value, other["optimizer"]["state"][index][name]) for name, value in state.items())
    assert torch.equal(mine["random"]["torch"], other["random"]["torch"])
    assert mine["random"]["python"] == other["random"]["python"]
    assert mine["scaler"] == other["scaler"]
    ours_lines, theirs_lines = metrics_lines(ours.metrics.path.parent), metrics_lines(theirs.metrics.path.parent)
    changing = ("samples_per_s", "out_of_memory")
    assert [{k: v for k, v in line.items() if k not in changing} for line in ours_lines] == [
        {k: v for k, v in line.items() if k not in changing} for line in theirs_lines
    ]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_halved_until_it_fits_the_result_is_that_of_small_batches_from_the_beginning(
    tmp_path: Path, backward: bool, precision: str
) -> None:
    """Groups of 8 and 6 windows, of which 2 fit at a time."""
    cramped, roomy = Cramped(room=2, backward=backward), Cramped()
    with pytest.warns(UserWarning) as caught:
        trainer, windows = fitted(tmp_path / "cramped", cramped, precision=precision)
    other, wanted = fitted(tmp_path / "roomy", roomy, precision=precision, forward=2)

    assert cramped.training_batches() == [8, 4, *[2] * 4, *[2] * 3, *[2] * 4, *[2] * 3]
    assert roomy.training_batches() == cramped.training_batches()[2:]
    assert windows.asked[0] == wanted.asked[0] + wanted.asked[1] + wanted.asked[2] + wanted.asked[3], "the same windows"
    assert windows.asked[1] == windows.asked[0][:4] and windows.asked[2:] == wanted.asked
    assert_same_result(trainer, other)
    assert cramped.validation_batches() == [2, 2, 2, 2, 2] * 2, "validation takes no more than training"

    words = "OutOfMemoryError: CUDA out of memory. Tried to allocate" if not backward else "RuntimeError: CUDA error: out of memory"
    for warning, tried in zip(caught, (8, 4), strict=True):
        start = rf"epoch 1, update 0: out of memory with {tried} windows to a forward pass \({words}"
        assert re.match(start + rf".*\); continuing with {tried // 2}, an update", str(warning.message))
    lines = metrics_lines(tmp_path / "cramped")
    assert [(line["batch_size"], line["out_of_memory"]) for line in lines] == [(2, 2), (2, 0)]
    assert trainer.state.batch_size == 2


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_failure_in_the_middle_of_a_group_begins_that_group_anew(tmp_path: Path, backward: bool) -> None:
    """The fourth forward pass is the second of the second update; what the first of it observed and added is undone."""
    cramped = Cramped(fail_at=(3,), backward=backward)
    with pytest.warns(UserWarning, match="epoch 1, update 1: out of memory with 4 windows"):
        trainer, windows = fitted(tmp_path / "cramped", cramped, forward=4)

    def lower(update: int) -> None:
        other.state.batch_size = 4 if update < 1 else 2

    roomy, wanted = Cramped(), TinyWindows(14)
    other = tiny_trainer(
        tmp_path / "roomy", roomy, train=wanted, batch_size=8, epochs=2, optimizer=OptimizerRecipe(lr=1e-2), on_update=lower
    )
    seed_everything()
    other.fit()
    assert cramped.training_batches()[:7] == [4, 4, 4, 2, 2, 2, 2]
    assert windows.asked[:2] + windows.asked[4:] == wanted.asked
    assert_same_result(trainer, other)


def test_a_failure_after_unscaling_leaves_the_scaler_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, calls = tftq.train.trainer.get_total_norm, iter([True])

    def cramped_norm(gradients: list[Tensor]) -> Tensor:
        if next(calls, False):
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
        return norm(gradients)

    monkeypatch.setattr(tftq.train.trainer, "get_total_norm", cramped_norm)
    with pytest.warns(UserWarning, match="update 0: out of memory with 8 windows"):
        trainer, _ = fitted(tmp_path / "cramped", Cramped(), precision="fp16")
    other, _ = fitted(tmp_path / "roomy", Cramped(), precision="fp16", forward=4)
    assert_same_result(trainer, other)


def test_a_short_group_is_halved_from_what_it_has(tmp_path: Path) -> None:
    """Six windows do not fit into a batch of 16: half of 16 would be the same attempt again."""
    model = Cramped(room=2)
    with pytest.warns(UserWarning, match="out of memory with"):
        tiny_trainer(tmp_path, model, windows=6, batch_size=16, epochs=1).fit()
    assert model.training_batches() == [6, 3, 1, 1, 1, 1, 1, 1]


def test_one_window_that_does_not_fit_ends_the_training_and_says_what_to_do(tmp_path: Path) -> None:
    model = Cramped(room=0)
    message = r"epoch 1, update 0: out of memory with one window to a forward pass, after 8 at first \(OutOf.*lower model\.hidden"
    with pytest.warns(UserWarning) as caught, pytest.raises(OutOfMemoryError, match=message):
        tiny_trainer(tmp_path, model, batch_size=8).fit()
    assert model.training_batches() == [8, 4, 2, 1]
    assert len(caught) == 3


def test_a_model_that_does_not_fit_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TinyModel, "to", lambda *_: _raise(torch.OutOfMemoryError(CUDA_WORDS)))
    with pytest.raises(OutOfMemoryError, match=r"the model does not fit on cpu.*Tried to allocate"):
        tiny_trainer(tmp_path)


def test_a_step_that_fails_half_way_is_not_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny_trainer(tmp_path, checkpoint_every=1)
    step, calls = trainer.optimizer.step, iter([False, False])

    def cramped_step(*args: Any, **options: Any) -> Any:
        if next(calls, True):
            raise torch.OutOfMemoryError(CUDA_WORDS)
        return step(*args, **options)

    monkeypatch.setattr(trainer.optimizer, "step", cramped_step)
    with pytest.raises(OutOfMemoryError, match=r"epoch 1, update 2: out of memory in the optimizer's step.*lower model\.hidden"):
        trainer.fit()
    saved = torch.load(trainer.checkpoints.last)
    assert saved["state"]["update"] == 2 and saved["state"]["batch_size"] == 2
    assert {int(state["step"]) for state in saved["optimizer"]["state"].values()} == {2}


def test_a_resumed_training_goes_on_with_the_size_that_was_found(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="out of memory"):
        whole, _ = fitted(tmp_path / "whole", Cramped(room=2), checkpoint_every=1)

    class Interrupted(Exception):
        pass

    def interrupt(update: int) -> None:
        if update == 3:
            raise Interrupted

    options = {"batch_size": 8, "epochs": 2, "optimizer": OptimizerRecipe(lr=1e-2), "checkpoint_every": 1}
    first = tiny_trainer(tmp_path / "parts", Cramped(room=2), train=TinyWindows(14), on_update=interrupt, **options)
    seed_everything()
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(Interrupted):
        first.fit()
    second = tiny_trainer(tmp_path / "parts", Cramped(seed=1, room=2), train=TinyWindows(14), **options)
    result = second.fit(resume=True)
    assert second.model.training_batches() == [2, 2, 2]
    assert (result.batch_size, result.out_of_memory) == (2, 2)
    assert result.summary().batch_size == result.summary().out_of_memory == 2
    assert_same_result(second, whole)


def test_live_bytes_after_a_recovered_update_are_those_of_one_that_fitted(tmp_path: Path) -> None:
    """In the training loop: at the beginning of the update after the one that failed, and of each one to come."""
    live: dict[str, list[int]] = {}
    for name, model, options in (("cramped", Cramped(room=2), {}), ("roomy", Cramped(), {"forward": 2})):
        with ByteCounter() as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: list[int] = []
            note = partial(_note_live_bytes, found, counter)
            tiny_trainer(tmp_path / name, model, windows=14, batch_size=8, on_update=note, **options).fit()
        live[name] = found
    assert len(live["roomy"]) == 6
    assert live["cramped"] == live["roomy"]
    assert len(set(live["roomy"][1:])) == 1, "and they stay, once there is optimizer state"


def _note_live_bytes(found: list[int], counter: ByteCounter, update: int) -> None:
    found.append(counter.live_bytes)


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
def test_the_real_network_fails_while_a_block_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: bool) -> None:
    """In the backward pass of the first update: weights, ranges and live bytes are those of small batches from the beginning."""
    layer_norm, failing = F.layer_norm, iter([False, False, True])

    def cramped(*args: Any, **options: Any) -> Tensor:
        if recomputing() and next(failing, False):
            raise torch.OutOfMemoryError(CUDA_WORDS)
        return layer_norm(*args, **options)

    monkeypatch.setattr(F, "layer_norm", cramped)
    found = []
    for name, forward in (("cramped", None), ("roomy", 4)):
        model = small_model(hidden=8, lstm_layers=1, knots=4)
        windows = RealWindows(model.inputs, 16)
        if quantized:
            model = prepared_copy(tabulate(model)[0], lstm="fp32")
            calibrate(model, [windows.batch(range(8))])
            for _, quantizer in quantizers(model.train()):
                quantizer.observing = quantizer.enabled = True
        live: list[int] = []
        with ByteCounter() as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = partial(_note_live_bytes, live, counter)
            options: dict[str, Any] = {"train": windows, "validation": windows, "on_update": note, "forward": forward}
            trainer = tiny_trainer(tmp_path / name, model, batch_size=8, epochs=2, **options)
            seed_everything()
            result = trainer.fit()
        assert (result.batch_size, result.out_of_memory) == (4, 1 if name == "cramped" else 0)
        found.append((trainer, live))
    (ours, our_bytes), (theirs, their_bytes) = found
    assert_same_result(ours, theirs)
    assert our_bytes == their_bytes and len(set(our_bytes[1:])) == 1
