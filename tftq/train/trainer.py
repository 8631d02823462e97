"""The training loop of float training and quantization-aware training."""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tftq.evaluate.loss import quantile_loss
from tftq.evaluate.metrics import Validation
from tftq.evaluate.precision import Precision
from tftq.model.batch import gather
from tftq.model.forecaster import Forecaster
from tftq.quant.quantizers import ActivationQuantizer, quantizers
from tftq.spec.stages import STAGES
from tftq.train.checkpoint import restore_random_state
from tftq.train.context import TrainingData, Workplace
from tftq.train.diagnose import require_finite
from tftq.train.in_backward import AppliedInBackward
from tftq.train.log import MetricsFile, TrainingBar, describe_epoch
from tftq.train.oom import Snapshot, explain_out_of_memory, halve, until_it_fits
from tftq.train.optimizer import build_optimizer, step_optimizer
from tftq.train.resume import Checkpoints, Resumable, identity
from tftq.train.sampler import Sampler
from tftq.train.schedule import Schedule
from tftq.train.stages import StageSettings
from tftq.train.state import State, Training
from tftq.train.validate import Validator


class Trainer:
    """Trains a model, and writes metrics.jsonl and checkpoints/ to a folder.

    Args:
        model: a forecaster; modules of it that are in eval mode stay in it.
        data: the windows.
        settings: of the stage of training.
        place: the device and the folder.
        on_update: called with the number of an update before it is computed, and again if FP16 skipped it; its settings must depend
            on that number alone, since a resumed training starts at any number.
    """

    def __init__(
        self,
        model: Forecaster,
        data: TrainingData,
        settings: StageSettings,
        place: Workplace,
        *,
        on_update: Callable[[int], None] = lambda update: None,
    ) -> None:
        advice = "lower model.hidden or free memory there"
        with explain_out_of_memory(f"the model does not fit on {place.device}, before anything is computed; {advice}"):
            self.model = model.to(place.device)
        self.windows, self.settings, self.timeline, self.on_update = data.train, settings, place.timeline, on_update
        self.title = STAGES[settings.name].title

        self.precision = Precision(settings.precision, place.device)
        self.scaler = self.precision.scaler()
        self.optimizer = build_optimizer(self.model, settings.optimizer, range_lr=settings.range_lr)
        self.applied = AppliedInBackward(self.optimizer) if settings.optimizer.in_backward else None
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.sampler = Sampler(len(data.train), settings.batch_size * settings.accumulate, settings.seed)
        self.schedule = Schedule.of(settings.schedule, settings.epochs * self.sampler.groups_per_epoch)
        self.quantiles = torch.tensor(self.model.quantiles, device=place.device)
        self.quantizers = [quantizer for _, quantizer in quantizers(self.model) if isinstance(quantizer, ActivationQuantizer)]
        self.state = State(settings.forward_batch or settings.batch_size)
        announce = self.state.announce_shortage
        self.validator = Validator(self.model, data.validation, settings, self.precision, self.optimizer, announce=announce)
        self.validator.warn_of_larger_batches(self.state.batch_size)

        lines = identity(data.fingerprint, place.device.type, self.sampler, self.schedule, self.optimizer)
        self.checkpoints = Checkpoints(place.folder, place.recipe, lines)
        self.metrics = MetricsFile(place.folder / "metrics.jsonl")

    def fit(self, *, resume: bool = False) -> Training:
        """Train to the end, or until the validation loss stops improving; then load the best weights back.

        Args:
            resume: continue from checkpoints/last.pt, as if there had been no interruption.

        Raises:
            NonFiniteError: a loss, a gradient or a validation forecast is not finite; names the place.
            CheckpointError: the checkpoint to resume from is missing, damaged, or of another model, data or schedule.
            OutOfMemoryError: memory does not suffice even for one window at a time.
            KeyboardInterrupt: with a note on where `resume` continues.
        """
        assert self.model.training, "the model is in eval mode: call model.train() before training"
        state = self.state
        try:
            with TrainingBar(self.title, self.settings.epochs, self.sampler.groups_per_epoch, self.precision.device) as bar:
                if resume:
                    self._resume()
                else:
                    self._start(bar)
                while state.epoch <= self.settings.epochs and not state.stopped:
                    self._epoch(bar)
        except KeyboardInterrupt as interruption:
            interruption.add_note(f"{self.title} would resume {self.checkpoints.resume_point}")
            raise
        validation, epoch = self.checkpoints.load_best(self.model)
        return state.result(validation, epoch)

    def _start(self, bar: TrainingBar) -> None:
        self.metrics.truncate(0)  # of a training that was interrupted before its first checkpoint
        if self.settings.keep_start:
            validation = self.validator(self.state.batch_size, bar)
            self.state.start_loss = self.state.best_loss = validation.loss
            self.checkpoints.save_best(self.model, validation, epoch=0)

    def _resume(self) -> None:
        random = self.checkpoints.load_last(self._resumable)
        self.on_update(max(self.state.update - 1, 0))  # its settings are not in the checkpoint
        self.metrics.truncate(self.state.epoch - 1)  # an interruption can fall between a line and its checkpoint
        restore_random_state(random)

    @property
    def _resumable(self) -> Resumable:
        return Resumable(self.model, self.optimizer, self.scaler, self.state, self.validator)

    def _epoch(self, bar: TrainingBar) -> None:
        state, settings = self.state, self.settings
        epoch = state.epoch
        self.timeline.record("EPOCH_START", epoch)

        bar.start_epoch(epoch, state.position)
        for group in self.sampler.groups(epoch, state.position):
            started = time.perf_counter()
            self._update(group, bar)
            state.sums.seconds += time.perf_counter() - started
            state.position += 1
            if settings.checkpoint_every is not None and state.update % settings.checkpoint_every == 0:
                self.checkpoints.save_last(self._resumable)
        self.timeline.record("AFTER_TRAINING", epoch)

        validation = self._validation(bar) if epoch % settings.validate.every == 0 or epoch == settings.epochs else None
        self.metrics.add(state, self.validator.batch_size(state.batch_size), self.optimizer, validation)
        bar.print_line(describe_epoch(self.title, settings.epochs, state, validation))
        state.next_epoch()
        self.checkpoints.save_last(self._resumable)
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
        if step_optimizer(self.optimizer, self.scaler, state.where):
            sums.norm += norm
            sums.applied += 1
            state.update += 1
        else:
            sums.skipped += 1
        bar.update(loss, self.optimizer.param_groups[0]["lr"])

    def _gradients(self, group: Tensor) -> tuple[float, float]:
        """Compute the gradients of a group; where memory runs out, start again with fewer windows at a time.

        Up to here no parameter and no optimizer state has changed, so that an attempt can be undone and its windows and dropout are the
        same again.
        """
        before = Snapshot(self.quantizers)

        def give_way(reason: str) -> None:
            if self.applied is not None:
                self.applied.refuse_retry(self.state.where, reason)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler = self.precision.scaler(self.scaler)  # one that has not unscaled anything
            before.restore()
            tried = min(self.state.batch_size, len(group))  # a short group has fewer than `batch_size`
            self.state.batch_size, words = halve(tried, self.settings.batch_size, self.state.where, reason)
            self.state.announce_shortage(words)
            self.validator.warn_of_larger_batches(self.state.batch_size)

        return until_it_fits(lambda: self._attempt(group), give_way, self.precision.device)

    def _attempt(self, group: Tensor) -> tuple[float, float]:
        """Compute a group's gradients, unscaled and clipped; returns the mean loss and the gradients' norm before clipping."""
        size = self.state.batch_size
        total = torch.zeros((), device=self.precision.device)
        for offset, indices in zip(range(0, len(group), size), group.split(size), strict=True):
            batch = gather(self.windows, indices, self.precision.device)
            with self.precision.autocast():
                forecast = self.model(*batch.inputs)
            loss = quantile_loss(forecast, batch.target, self.quantiles, self.model.target_scale)
            loss = loss * (len(indices) / len(group))  # so that the sum is the mean over the group, ragged batches included
            if self.applied is not None:
                self._require_finite(loss.item(), 0.0, group)  # non-finite gradients must not be applied
            self.scaler.scale(loss).backward()
            total += loss.detach()
            self._record_batch(offset)

        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = get_total_norm(gradients) if self.applied is None else self.applied.take_norm(self.precision.device)
        loss_value, norm_value = torch.stack([total, norm]).tolist()  # the one place that waits for the device
        self._require_finite(loss_value, norm_value, group)
        if self.settings.clip_norm is not None:
            clip_grads_with_norm_(self.parameters, self.settings.clip_norm, norm)
        return loss_value, norm_value

    def _require_finite(self, loss: float, norm: float, group: Tensor) -> None:
        batches = (gather(self.windows, indices, self.precision.device) for indices in group.split(self.state.batch_size))
        skips = self.scaler.is_enabled()  # the scaler itself skips a step whose gradients are not finite, and scales less
        require_finite(loss, 0.0 if skips else norm, self.model, batches, self.precision, self.state.where)

    def _record_batch(self, offset: int) -> None:
        """Record memory after a forward pass over the group's windows from `offset`; batches are counted at the recipe's size."""
        number, into = divmod(offset, self.settings.batch_size)
        number += self.state.position * self.settings.accumulate
        if into < self.state.batch_size and number % self.settings.memory_every == 0:  # the first forward pass of its batch
            self.timeline.record(f"TRAIN_BATCH_{number}", self.state.epoch)

    def _validation(self, bar: TrainingBar) -> Validation:
        state = self.state
        self.timeline.record("BEFORE_VALIDATION", state.epoch)
        validation = self.validator(state.batch_size, bar, lambda phase: self.timeline.record(phase, state.epoch))
        self.timeline.record("AFTER_VALIDATION", state.epoch)

        too_early = state.update <= self.settings.best_from and state.epoch < self.settings.epochs
        if state.judge(validation.loss, self.settings.patience, too_early=too_early):
            self.checkpoints.save_best(self.model, validation, state.epoch)
        return validation
