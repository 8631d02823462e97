"""The training loop, of float training and of quantization-aware training alike."""

import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tftq.errors import CheckpointError, NonFiniteError, OutOfMemoryError
from tftq.evaluate.diagnose import find_non_finite, not_finite_gradients, not_finite_weights
from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.metrics import Validation
from tftq.evaluate.precision import Precision
from tftq.evaluate.windows import Windows
from tftq.model.forecaster import Forecaster
from tftq.quant.fake_quantize import ActivationQuantizer, quantizers
from tftq.recipe.schema import TrainRecipe, ValidateRecipe
from tftq.train.checkpoint import load_checkpoint, load_model, random_state, restore_random_state, save_checkpoint
from tftq.train.in_backward import AppliedInBackward
from tftq.train.log import TrainingBar
from tftq.train.oom import Snapshot, explain_out_of_memory, until_it_fits
from tftq.train.optimizer import build_optimizer
from tftq.train.sampler import Sampler
from tftq.train.schedule import Schedule
from tftq.train.state import State, Training
from tftq.train.validate import Validator


class Timeline(Protocol):
    """A recorder of the memory in use."""

    def record(self, phase: str, epoch: int) -> None:
        """Leave one record for a phase of an epoch, epochs counted from 1."""


class Trainer:
    """Trains a model, and leaves metrics.jsonl and checkpoints/ in a folder.

    Args:
        model: a forecaster; modules of it that are in eval mode stay in it.
        train: the windows to learn from.
        validation: the windows that decide which epoch was the best.
        settings: epochs, batch size, optimizer, schedule, and so on.
        folder: where to write; made where missing.
        timeline: takes down the memory in use at every phase.
        device: where to compute.
        validate: how often, where and in which batches to validate.
        seed: of the order of the windows.
        recipe: the text of it, which checkpoints keep.
        data: what a checkpoint must have been trained on to be resumed, as a fingerprint.
        on_update: called with the number of an update before it is computed, and again if FP16 skipped it; what it sets must follow
            from that number alone, since a resumed training starts at any number.
        best_from: the first update whose model may be the best one; QAT begins at the update that quantizes everything.
        keep_start: the model as it comes counts as epoch 0, and is what is left where no epoch improves on it.
        title: what the progress bar calls this training.
        batch_size: windows to a forward pass, at most `settings.batch_size`, which is the default. Fewer need less memory; an update
            is computed from the same windows, and its gradients are the same but for rounding. Halved where memory runs out.
        offload: where `validate.offload_optimizer` is auto, whether the optimizer's state leaves a GPU during validation from the start.
    """

    def __init__(
        self,
        model: Forecaster,
        train: Windows,
        validation: Windows,
        settings: TrainRecipe,
        folder: Path,
        timeline: Timeline,
        device: torch.device,
        *,
        validate: ValidateRecipe,
        seed: int,
        recipe: str,
        data: str = "",
        on_update: Callable[[int], None] = lambda update: None,
        best_from: int = 0,
        keep_start: bool = False,
        title: str = "training",
        batch_size: int | None = None,
        offload: bool = True,
    ) -> None:
        assert batch_size is None or 1 <= batch_size <= settings.batch_size, (batch_size, settings.batch_size)
        assert not settings.optimizer.in_backward or batch_size in (None, settings.batch_size)
        with explain_out_of_memory(
            f"the model does not fit on {device}, before anything is computed; lower model.hidden or free memory there"
        ):
            self.model = model.to(device)
        self.train, self.settings, self.validate_every = train, settings, validate.every
        self.timeline, self.recipe, self.data, self.title = timeline, recipe, data, title
        self.on_update, self.best_from, self.keep_start = on_update, best_from, keep_start

        self.precision = Precision(settings.precision, device)
        self.scaler = self.precision.scaler()
        self.optimizer = build_optimizer(self.model, settings.optimizer)
        self.applied = AppliedInBackward(self.optimizer) if settings.optimizer.in_backward else None
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.sampler = Sampler(len(train), settings.batch_size * settings.accumulate, seed)
        self.schedule = Schedule.of(settings.schedule, settings.epochs * self.sampler.groups_per_epoch)
        self.quantiles = torch.tensor(self.model.quantiles, device=device)
        self.quantizers = [quantizer for _, quantizer in quantizers(self.model) if isinstance(quantizer, ActivationQuantizer)]
        self.state = State(batch_size or settings.batch_size)
        self.saved: tuple[int, int] | None = None  # epoch and update of the last checkpoint
        self.validator = Validator(
            self.model, validation, validate, self.precision, self.optimizer, offload=offload, announce=self._announce_shortage
        )
        self.validator.warn_of_larger_batches(self.batch_size)

        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.metrics = folder / "metrics.jsonl"
        self.last, self.best = folder / "checkpoints" / "last.pt", folder / "checkpoints" / "best.pt"

    def fit(self, *, resume: bool = False) -> Training:
        """Train to the end, or until the validation loss stops improving; then load the best weights back.

        Args:
            resume: continue from checkpoints/last.pt, as if there had been no interruption.

        Raises:
            NonFiniteError: a loss, a gradient or a validation forecast is not finite; says where.
            CheckpointError: the checkpoint to resume from is missing, damaged, or of another model, data or schedule.
            OutOfMemoryError: memory does not suffice, one window at a time either.
            KeyboardInterrupt: with a note of where `resume` goes on.
        """
        assert self.model.training, "the model is in eval mode: call model.train() before training"
        try:
            with TrainingBar(self.title, self.settings.epochs, self.sampler.groups_per_epoch, self.precision.device) as bar:
                self._start(bar, resume)
                while self.state.epoch <= self.settings.epochs and not self.state.stopped:
                    self._epoch(bar)
        except KeyboardInterrupt as interruption:
            interruption.add_note(self._resume_point())
            raise

        best = load_checkpoint(self.best)
        load_model(self.model, best, self.best)
        rate = self.state.windows / self.state.seconds
        found = Validation(**best["validation"])
        state = self.state
        return Training(state.update, state.skipped, rate, best["epoch"], found, state.batch_size, state.out_of_memory, state.start_loss)

    @property
    def batch_size(self) -> int:
        """Windows to a forward pass now."""
        return self.state.batch_size

    def _start(self, bar: TrainingBar, resume: bool) -> None:
        if resume:
            self._resume()
            return
        self.metrics.unlink(missing_ok=True)  # of a training that was interrupted before its first checkpoint
        if self.keep_start:
            found = self.validator(self.batch_size, bar)
            self.state.start_loss = self.state.best_loss = found.loss
            self._save_best(found, epoch=0)

    def _epoch(self, bar: TrainingBar) -> None:
        state = self.state
        epoch = state.epoch
        self.timeline.record("EPOCH_START", epoch)

        bar.start_epoch(epoch, state.position)
        for group in self.sampler.groups(epoch, state.position):
            started = time.perf_counter()
            self._update(group, bar)
            state.sums.seconds += time.perf_counter() - started
            state.position += 1
            if self.settings.checkpoint_every is not None and state.update % self.settings.checkpoint_every == 0:
                self._save_last()
        self.timeline.record("AFTER_TRAINING", epoch)

        found = self._validation(bar) if epoch % self.validate_every == 0 or epoch == self.settings.epochs else None
        self._log(found)
        self._tell(bar, found)
        self.state.next_epoch()
        self._save_last()
        self.timeline.record("AFTER_CHECKPOINT", epoch)
        self.timeline.record("EPOCH_END", epoch)

    def _update(self, group: Tensor, bar: TrainingBar) -> None:
        """Compute one update from a group of windows."""
        state, sums = self.state, self.state.sums
        self.schedule.apply(self.optimizer, state.update)
        self.on_update(state.update)

        loss, norm = self._gradients(group)
        sums.windows += len(group)
        sums.loss += loss * len(group)
        if self._step():
            sums.norm += norm
            sums.applied += 1
            state.update += 1
        else:
            sums.skipped += 1
        bar.update(loss, self.optimizer.param_groups[0]["lr"])

    def _gradients(self, group: Tensor) -> tuple[float, float]:
        """Compute the gradients of a group; where memory runs out do it again, from the beginning, fewer windows at a time.

        Up to here no parameter and no optimizer state has changed, so that an attempt can be undone and its windows and dropout are the
        same again.
        """
        before = Snapshot(self.quantizers)

        def give_way(reason: str) -> None:
            if self.applied is not None:
                raise OutOfMemoryError(
                    f"{self._where}: out of memory ({reason}); train.optimizer.in_backward forwards all windows of an update at once and "
                    "applies gradients before all are there, so that nothing can be tried again: lower train.batch_size"
                )
            self.optimizer.zero_grad(set_to_none=True)
            scale = self.scaler.state_dict()
            self.scaler = self.precision.scaler()  # one that has not unscaled anything
            self.scaler.load_state_dict(scale)
            before.restore()
            self._halve(len(group), reason)

        return until_it_fits(lambda: self._attempt(group), give_way, self.precision.device)

    def _attempt(self, group: Tensor) -> tuple[float, float]:
        """Leave a group's gradients, unscaled and clipped; returns the loss of a window and the gradients' norm before clipping."""
        total = torch.zeros((), device=self.precision.device)
        for offset, indices in zip(range(0, len(group), self.batch_size), group.split(self.batch_size), strict=True):
            batch = self.train.batch(indices).to(self.precision.device)
            with self.precision.autocast():
                forecast = self.model(*batch.inputs)
            loss = quantile_loss(forecast, batch.target, self.quantiles, self.model.target_scale)
            loss = loss * (len(indices) / len(group))  # so that the sum is the mean over the group, ragged batches included
            if self.applied is not None:
                self._check_finite(loss.item(), 0.0, group)  # what is not finite must not be applied
            self.scaler.scale(loss).backward()
            total += loss.detach()
            self._record_batch(offset)

        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = get_total_norm(gradients) if self.applied is None else self.applied.take_norm(self.precision.device)
        loss_value, norm_value = torch.stack([total, norm]).tolist()  # the one place that waits for the device
        self._check_finite(loss_value, norm_value, group)
        if self.settings.clip_norm is not None:
            clip_grads_with_norm_(self.parameters, self.settings.clip_norm, norm)
        return loss_value, norm_value

    def _record_batch(self, offset: int) -> None:
        """Leave a record of a forward pass over the windows from `offset` of the group; batches count as if none had been lowered."""
        number, into = divmod(offset, self.settings.batch_size)
        number += self.state.position * self.settings.accumulate
        if into < self.batch_size and number % self.settings.memory_every == 0:  # the first forward pass of its batch
            self.timeline.record(f"TRAIN_BATCH_{number}", self.state.epoch)

    def _step(self) -> bool:
        """Step the optimizer; returns whether the step was applied: a fused optimizer hides a skipped one, the scale does not."""
        before = self.scaler.get_scale()
        with explain_out_of_memory(
            f"{self._where}: out of memory in the optimizer's step, which needs the same however few windows are forwarded: the model, its "
            "gradients and the optimizer's state do not fit together; use train.optimizer.name adamw8bit, or lower model.hidden"
        ):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        after = self.scaler.get_scale()
        if after < 1:
            raise NonFiniteError(
                f"{self._where}: FP16 gradients are not finite even unscaled; "
                "use train.precision bf16 or fp32, or a lower train.optimizer.lr"
            )
        return after >= before

    def _check_finite(self, loss: float, norm: float, group: Tensor) -> None:
        if not math.isfinite(loss):
            batches = (self.train.batch(indices).to(self.precision.device) for indices in group.split(self.batch_size))
            with self.precision.autocast():
                reasons = [reason for batch in batches if (reason := find_non_finite(self.model, batch))]
            reason = reasons[0] if reasons else "every layer's output is finite when the batch is run again"
            raise NonFiniteError(f"{self._where}: the training loss is {loss}: {reason}; look at that, or lower train.optimizer.lr")
        if not math.isfinite(norm) and not self.scaler.is_enabled():  # the scaler itself skips such a step and scales less
            names = ", ".join((not_finite_gradients(self.model) or not_finite_weights(self.model))[:5])
            raise NonFiniteError(f"{self._where}: the loss is finite, the gradients of {names} are not; lower train.optimizer.lr")

    @property
    def _where(self) -> str:
        return f"epoch {self.state.epoch}, update {self.state.update}"

    def _halve(self, windows: int, reason: str) -> None:
        """Forward half as many windows as were tried, which a short group has fewer of than `batch_size`."""
        tried = min(self.batch_size, windows)
        if tried == 1:
            raise OutOfMemoryError(
                f"{self._where}: out of memory with one window to a forward pass, after {self.settings.batch_size} at first ({reason}); "
                "lower model.hidden, a TFT's model.knots or data.lookback, train in fp16 or bf16, or free memory that others hold"
            )
        self.state.batch_size = tried // 2
        self._announce_shortage(
            f"{self._where}: out of memory with {tried} windows to a forward pass ({reason}); going on with {self.batch_size}, "
            "an update is still computed from as many windows"
        )
        self.validator.warn_of_larger_batches(self.batch_size)

    def _announce_shortage(self, words: str) -> None:
        self.state.sums.out_of_memory += 1
        warnings.warn(words, stacklevel=2)

    def _validation(self, bar: TrainingBar) -> Validation:
        state = self.state
        self.timeline.record("BEFORE_VALIDATION", state.epoch)
        found = self.validator(self.batch_size, bar, lambda phase: self.timeline.record(phase, state.epoch))
        self.timeline.record("AFTER_VALIDATION", state.epoch)

        if state.update <= self.best_from and state.epoch < self.settings.epochs:
            state.patient_since = state.epoch
        elif found.loss < state.best_loss:
            state.best_loss, state.best_epoch, state.patient_since = found.loss, state.epoch, state.epoch
            self._save_best(found, state.epoch)
        patience = self.settings.patience
        state.stopped = patience is not None and state.epoch - state.patient_since >= patience
        return found

    def _log(self, found: Validation | None) -> None:
        """Add the epoch's line to metrics.jsonl; learning rates are what the optimizer holds, those of the last update."""
        sums = self.state.sums
        line = {
            "epoch": self.state.epoch,
            "updates": self.state.update,
            "skipped": sums.skipped,
            "batch_size": self.batch_size,
            "validation_batch_size": self.validator.batch_size(self.batch_size),
            "out_of_memory": sums.out_of_memory,
            "train_loss": sums.loss / sums.windows,
            "grad_norm": sums.norm / sums.applied if sums.applied else None,
            "lr": {group["name"]: float(group["lr"]) for group in self.optimizer.param_groups},
            "samples_per_s": sums.windows / sums.seconds,
            "val": None if found is None else asdict(found),
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def _tell(self, bar: TrainingBar, found: Validation | None) -> None:
        sums = self.state.sums
        validated = "" if found is None else f", validation loss {found.loss:.4g}"
        loss, rate = sums.loss / sums.windows, sums.windows / sums.seconds
        bar.tell(f"{self.title} {self.state.epoch}/{self.settings.epochs}: loss {loss:.4g}{validated}, {rate:.0f} windows/s")

    def _plan(self) -> dict[str, list[str]]:
        """What must be the same for a checkpoint to be resumed, in lines."""
        groups = self.optimizer.param_groups
        return {
            "data": [f"data: {self.data}"],
            "windows": [f"{name}: {value}" for name, value in vars(self.sampler).items()],
            "device": [self.precision.device.type],
            "schedule": [f"{name}: {value}" for name, value in asdict(self.schedule).items()],
            "param groups": [f"{group['name']}: lr {group['base_lr']}, {len(group['params'])} parameters" for group in groups],
        }

    def _save_best(self, found: Validation, epoch: int) -> None:
        content = {"recipe": self.recipe, "model": self.model.state_dict(), "epoch": epoch, "validation": asdict(found)}
        save_checkpoint(self.best, content)

    def _save_last(self) -> None:
        content = {
            "recipe": self.recipe,
            "plan": self._plan(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "state": asdict(self.state),
            "validator": self.validator.state_dict(),
            "random": random_state(),
        }
        save_checkpoint(self.last, content)
        self.saved = (self.state.epoch, self.state.update)

    def _resume(self) -> None:
        content = load_checkpoint(self.last)
        saved, now = content["plan"], self._plan()
        saved.setdefault("data", saved.get("recipe", [])[-1:])  # where older checkpoints have it, below their recipe
        changed = [line for name in now for line in unified_diff(saved[name], now[name], f"{name} then", f"{name} now", lineterm="", n=0)]
        if changed:
            advice = "of another training; resume with the recipe and data it began with, or train anew"
            raise CheckpointError("\n".join([f"{self.last}: {advice}", *changed]))
        load_model(self.model, content, self.last)
        self.optimizer.load_state_dict(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        self.state = State.of(content["state"])
        self.saved = (self.state.epoch, self.state.update)
        self.validator.load_state_dict(content["validator"])
        self.on_update(max(self.state.update - 1, 0))  # what it sets is not in the checkpoint
        self._forget_unfinished_epochs()
        restore_random_state(content["random"])

    def _forget_unfinished_epochs(self) -> None:
        """Drop the lines of epochs that will be trained again: an interruption can fall between a line and its checkpoint."""
        if self.metrics.exists():
            lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            self.metrics.write_text("".join(lines[: self.state.epoch - 1]), encoding="utf-8")

    def _resume_point(self) -> str:
        where = "from its beginning" if self.saved is None else "at epoch {}, update {}".format(*self.saved)
        return f"{self.title} would go on {where}"
