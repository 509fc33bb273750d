"""The training loop, the same for pretraining and fine-tuning; `asterism.train.job` is their contract."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from asterism.errors import Interrupted, UserError
from asterism.lock import folder_lock, is_owned
from asterism.nn.learner import B, Learner, trained_parameters
from asterism.ops import collectives
from asterism.ops.compilable import compiled_functions
from asterism.ops.random import fold
from asterism.ops.sharding import whole
from asterism.train import checkpoint
from asterism.train.clock import Clock, expected_steps, share_in
from asterism.train.compiling import compile_parts
from asterism.train.cores import training_threads
from asterism.train.cost import autocast_to
from asterism.train.job import Job
from asterism.train.monitor import Monitor
from asterism.train.optim import clip_gradients
from asterism.train.outlook import Pace, before_start, outlook
from asterism.train.run import Run
from asterism.train.stopping import StopRequest
from asterism.types import Losses, Progress

_TIMES = 10  # measurements in a run of minutes
_SCALE = {"scale": "loss_scale.factor", "_growth_tracker": "loss_scale.good"}  # names in GradScaler and in a checkpoint
_LEAST_SCALE = 2.0**-14  # at which gradients that are not finite have another reason


class Diverged(UserError):
    """Losses, gradients or weights are not finite."""


class Training(Generic[B]):
    """A job, as one process works on it."""

    def __init__(self, fabric: Fabric, job: Job[B], began: float) -> None:
        """began: when the run was started or resumed, by `time.monotonic`."""
        self.fabric, self.job, self.learner = fabric, job, job.learner
        self.clock = Clock(job.trainer.minutes if fabric.is_global_zero else None, began)
        self.progress = self._progress(0, 0.0)
        if job.trainer.compile == "on":
            compile_parts(job.learner)
        # Float16 alone needs a scale: its smallest normal number, 6e-5, exceeds many gradients.
        self.scaler = torch.amp.GradScaler(fabric.device.type, enabled=job.trainer.precision == "fp16")
        self.objective = _Objective(job.learner, job.trainer.precision, fabric.device.type)
        self.forward = fabric.setup_module(self.objective)  # sharded parameters exist from here on
        self._parameters = list(job.learner.parameters())  # kept, because walking through many modules takes time
        self.optimizer = job.optimizer()
        self._unlogged: Mapping[str, Tensor] = {}  # what the log of an interrupted run has not written yet

    def restore(self, state: checkpoint.State) -> None:
        """Continue from a checkpoint."""
        checkpoint.restore(state, self.learner, self.optimizer)
        self.clock.restore(state.log)
        self.progress = self._progress(state.step, share_in(state.log))
        if self.scaler.is_enabled():
            scale = {key: state.optimizer[name].item() for key, name in _SCALE.items() if name in state.optimizer}
            self.scaler.load_state_dict(self.scaler.state_dict() | scale)
        self._unlogged = state.log

    @property
    def is_finished(self) -> bool:
        return self.progress.is_over or self.job.ends_early(self.progress.step)

    def train(self) -> Run:
        """Train to the end; saves regularly, at the end, and when a signal stops the run."""
        job, first, start = self.job, self.fabric.is_global_zero, self.progress.step
        pace = Pace(self.progress)
        saving = _SaveSchedule(job.checkpoint, job.steps_per_epoch)
        path = job.run.path if first else None
        monitor = Monitor(job.logging, path, start, job.steps, self.learner.uniform_terms, self.clock.began)
        monitor.restore(self._unlogged)
        monitor.print(job.describe(self.fabric))
        if start == 0 and (doubt := before_start(job, self.fabric.device)) is not None:
            monitor.print(doubt)
        with self._threads(), self._compiled(), monitor, StopRequest(monitor.print) as stop:
            if start == 0:
                self._measure(monitor, 0)
            batches = job.batches(start, self.fabric)
            ends = self.is_finished
            while not ends:
                before = self.progress
                micro_batches = self._gradients(before, batches, monitor)
                agreed = self._agree(before, micro_batches, stop.received, saving.is_late())
                after = self.progress = self._progress(before.step + 1, agreed.share)
                self._update(before, after, sum(part.waited for part in micro_batches), monitor)
                # Before saving, so that the checkpoint contains what a measurement decides.
                if self._measures(before, after, agreed.has_rested):
                    self._measure(monitor, after.step)
                ends = self.is_finished
                if saving.is_due(after, agreed.late) or agreed.signal_number or ends:
                    self._save(after.step, monitor)
                if pace.is_known(after) and (message := outlook(job, pace, after, self.fabric.device)) is not None:
                    monitor.print(message)
                if agreed.signal_number:
                    raise Interrupted(
                        f"stopped at step {after.step} ({after.share:.0%} of the run) and saved; resume with: "
                        f"asterism {job.verb} --resume {job.run.path}",
                        agreed.signal_number,
                    )
        if first and (summary := job.verdict(job.run.metrics())) is not None:
            monitor.print(summary)
        return job.run

    def _measures(self, before: Progress, after: Progress, has_rested: bool) -> bool:
        """Whether to measure after the step between. All processes agree, because a measurement may need them all."""
        if self.job.measurement is None:
            return False
        if after.is_over:
            return True
        if (interval := self.job.measurement.interval) is not None:
            return after.step % interval == 0
        return has_rested and int(_TIMES * after.share) > int(_TIMES * before.share)

    def _measure(self, monitor: Monitor, step: int) -> None:
        if self.job.measurement is None:
            return
        with monitor.paused(), self.clock.timed("measurement"):
            record = self.job.measurement.measure(step)
        monitor.measured(step, record)

    def _gradients(self, progress: Progress, batches: Iterator[tuple[B, float]], monitor: Monitor) -> list[_MicroBatch]:
        """The micro-batches of a step, forward and backward."""
        # Our own code never draws from the global generator; this is for dropout inside a custom backbone.
        torch.manual_seed(fold(progress.seed, progress.step, self.fabric.global_rank) & 0xFFFFFFFF)
        count, made = self.job.trainer.accumulate, []
        for number in range(count):
            batch, waited = collectives.on_every_process(lambda: next(batches))
            with collectives.exchange(), self.fabric.no_backward_sync(self.forward, enabled=number < count - 1):
                total = self.forward(batch, progress)
                losses = self.objective.losses
                self.fabric.backward(self.scaler.scale(total / count))
            monitor.micro_batch(losses)
            made.append(_MicroBatch({name: value.detach().float() for name, value in losses.terms.items()}, waited))
        return made

    def _agree(self, progress: Progress, micro_batches: list[_MicroBatch], signal_number: int, late: bool) -> _Agreed:
        """Agree in one collective whether all processes stop for a signal after this step, whether they save, and on
        the time, which is that of the first.

        Raises on all processes, before the update, if the loss of one is not finite.
        """
        values = torch.stack([value for part in micro_batches for value in part.terms.values()])
        requests = [signal_number, late, self.clock.read(), self.clock.has_rested and self.fabric.is_global_zero]
        broken = (~values.isfinite()).any()[None].float()
        agreed = collectives.all_reduce_max(torch.cat([broken, torch.tensor(requests, device=values.device)])).tolist()
        if agreed[0]:
            raise self._not_finite(micro_batches, progress)
        return _Agreed(int(agreed[1]), bool(agreed[2]), agreed[3], bool(agreed[4]))

    def _not_finite(self, micro_batches: list[_MicroBatch], progress: Progress) -> Diverged:
        """The error, with the terms of the first micro-batch whose loss is not finite."""
        named = [
            ", ".join(f"{name} = {float(value)}" for name, value in part.terms.items() if not value.isfinite())
            for part in micro_batches
        ]
        terms = next(filter(None, named), "a term of another process")
        sound = all(bool(whole(parameter).isfinite().all()) for parameter in self.learner.parameters())
        cause = "This step did not change the weights" if sound else "An earlier step made the weights not finite"
        return Diverged(
            f"the loss is not finite at step {progress.step}: {terms}. {cause}; {self._last_checkpoint()}. Try a lower "
            "optim.lr, a longer optim.warmup_epochs, optim.clip=3 or trainer.precision=32"
        )

    def _check_gradient(self, norm: Tensor, progress: Progress) -> None:
        if not norm.isfinite():
            raise Diverged(
                f"the gradient is not finite at step {progress.step} although the loss is. This step did not change "
                f"the weights; {self._last_checkpoint()}. Try trainer.precision=32 or a lower optim.lr"
            )

    def _update(self, progress: Progress, after: Progress, waited: float, monitor: Monitor) -> None:
        """Clip the gradients, update the weights and the learner's other state, and report the step."""
        lr = self.job.set_schedules(self.optimizer, progress)
        frozen = list(self.learner.frozen(progress))
        for parameter in frozen:
            parameter.grad = None
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self._parameters, self.job.clipping)
        numbers: dict[str, float | Tensor] = {"lr": lr, "epoch": after.step / self.job.steps_per_epoch}
        if self.job.steps is None:
            numbers["share_of_time"] = after.share
        overflown = self.scaler.is_enabled() and self.scaler.get_scale() > _LEAST_SCALE and not norm.isfinite()
        if not overflown:  # else the scaler leaves this step out and lowers the scale
            self._check_gradient(norm, progress)
            numbers["gradient_norm"] = norm
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.learner.after_update(progress)
        monitor.step(after, images=self.job.batch_size, waited=waited, settled=not frozen, numbers=numbers)

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        device, parameters = self.fabric.device, trained_parameters(self.learner)
        return training_threads(device, parameters, self.fabric.world_size, self.job.workers)

    def _compiled(self) -> contextlib.AbstractContextManager[None]:
        return compiled_functions() if self.job.trainer.compile == "on" else contextlib.nullcontext()

    def _save(self, step: int, monitor: Monitor) -> None:
        log = monitor.state() | self.clock.state()
        state = checkpoint.capture(self.learner, self.optimizer, step, self.job.facts(), log)
        scale = self.scaler.state_dict()  # empty unless the precision is float16
        state.optimizer.update({name: torch.tensor(scale[key]) for key, name in _SCALE.items() if key in scale})
        broken = checkpoint.not_finite(state, {name for name, _ in self.learner.named_parameters()})
        if broken:
            raise Diverged(
                f"the weights are not finite after step {step}: {', '.join(broken[:3])}. They were not saved; "
                f"{self._last_checkpoint()}. Try a lower optim.lr, a longer optim.warmup_epochs or optim.clip=3"
            )

        def write() -> None:
            run = self.job.run.path
            if not is_owned(folder_lock(run)):
                raise UserError(
                    f"{run} was moved or deleted while it was trained, so step {step} cannot be saved. If it was "
                    f"moved, resume it where it is now: asterism {self.job.verb} --resume PLACE"
                )
            checkpoint.write(state, self.job.run.checkpoints, self.job.checkpoint)
            self.job.saved(state)

        with self.clock.timed("checkpoint"):
            collectives.on_first_process(write)

    def _last_checkpoint(self) -> str:
        saved = checkpoint.steps(self.job.run.checkpoints)
        return f"the last checkpoint, of step {saved[-1]}, is good" if saved else "there is no checkpoint yet"

    def _progress(self, step: int, share: float) -> Progress:
        """share: of the time, in a run of minutes."""
        steps = expected_steps(step, share) if self.job.steps is None else self.job.steps
        return Progress(step, steps, self.job.steps_per_epoch, self.job.trainer.seed)


@dataclass(frozen=True)
class _MicroBatch:
    """The loss terms of a micro-batch, and the seconds spent waiting for its data."""

    terms: dict[str, Tensor]
    waited: float


@dataclass(frozen=True)
class _Agreed:
    """What all processes know after the gradients of a step."""

    signal_number: int  # 0: none
    late: bool  # whether the last checkpoint is too old
    share: float  # of the time of a run of minutes
    has_rested: bool  # whether it may measure again


class _Objective(nn.Module, Generic[B]):
    """A learner's loss as a `forward`, which is what DDP and FSDP hook into."""

    def __init__(self, learner: Learner[B], precision: str, device: str) -> None:
        super().__init__()
        self.learner = learner
        self.losses: Losses
        self._kind = device  # not `_device`, which Fabric overwrites
        self._precision = precision

    def forward(self, batch: B, progress: Progress) -> Tensor:
        with autocast_to(self._precision, self._kind):
            self.losses = self.learner.loss(batch, progress)
        return self.losses.total


class _SaveSchedule:
    """Saves every so many steps, every so many minutes, and at the end."""

    def __init__(self, config: checkpoint.CheckpointConfig, steps_per_epoch: int) -> None:
        self._every = config.every_steps or steps_per_epoch
        self._seconds = 60 * config.every_minutes if config.every_minutes else float("inf")
        self._last = time.monotonic()

    def is_late(self) -> bool:
        """Whether the last checkpoint is too old, by this process's clock."""
        return time.monotonic() - self._last > self._seconds

    def is_due(self, progress: Progress, late: bool) -> bool:
        due = progress.step % self._every == 0 or progress.is_over or late
        if due:
            self._last = time.monotonic()
        return due
