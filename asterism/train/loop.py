"""The training loop, the same for every method."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from asterism.data import BadImageLog, Loader, Source, Views, to_batch
from asterism.errors import Interrupted, UserError
from asterism.methods.base import Method
from asterism.nn.encoder import Encoder
from asterism.ops import collectives
from asterism.ops.random import fold
from asterism.ops.sharding import whole
from asterism.train import checkpoint
from asterism.train.building import trained_parameters
from asterism.train.cores import allowed_cores, thread_count
from asterism.train.exporting import export
from asterism.train.monitor import Monitor
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.pace import Pace
from asterism.train.plan import LONG_HOURS, advice
from asterism.train.probe import Probe, open_probe
from asterism.train.recipe import Recipe
from asterism.train.resolve import describe
from asterism.train.run import Run
from asterism.train.stopping import StopRequest
from asterism.train.units import duration
from asterism.train.verdict import verdict
from asterism.types import Batch, Losses, Progress
from asterism.viz.page import Gallery

Examples = Callable[[Run], Mapping[str, Gallery]]

_WARMING_UP = 3  # first steps, which are not timed


class Training:
    """A run, as one process sees it. Its folder need not exist before `train`."""

    def __init__(self, fabric: Fabric, recipe: Recipe, source: Source, method: Method, run: Run) -> None:
        trainer = recipe.trainer
        assert trainer.steps is not None
        assert isinstance(trainer.batch_size, int)
        self.fabric, self.recipe, self.source, self.run = fabric, recipe, source, run
        self.method = method
        self._probe: Probe | None = None
        self.steps, self.batch_size = trainer.steps, trainer.batch_size
        self.steps_per_epoch = len(source) // trainer.batch_size
        self.objective = _Objective(method, trainer.precision)
        self.forward = fabric.setup_module(self.objective)  # sharded parameters exist from here on
        self.optimizer = build_optimizer(method, recipe.optim)
        self.stepper = cast(torch.optim.Optimizer, fabric.setup_optimizers(self.optimizer))

    def time_steps(self) -> float:
        """Median seconds per step, without the first steps."""
        monitor = Monitor(self.recipe.monitor, None, 0, self.steps, self.method.uniform_terms)
        seconds = []
        with self._threads():
            batches = self._batches(0)
            for step in range(self.steps):
                before, progress = time.perf_counter(), self._progress(step)
                micro_batches = self._gradients(progress, batches, monitor)
                self._update(progress, sum(part.waited for part in micro_batches), monitor)
                seconds.append(time.perf_counter() - before)
        return statistics.median(seconds[_WARMING_UP:])

    def train(self, start: int, examples: Examples | None = None) -> Run:
        """Train from step `start` to the end; saves regularly, at the end, and when a signal stops the run.

        examples: draws pictures of the finished run for its trackers.
        """
        first, probe = self.fabric.is_global_zero, self._probe
        pace = Pace(start, self.steps)
        saving = _SaveSchedule(self.recipe.checkpoint, self.steps, self.steps_per_epoch)
        monitor = Monitor(
            self.recipe.monitor, self.run.path if first else None, start, self.steps, self.method.uniform_terms
        )
        self._announce(monitor)
        with self._threads(), monitor, StopRequest(monitor.print) as stop:
            if probe is not None and start == 0:
                self._measure(monitor, 0, probe.first_record)
            batches = self._batches(start)
            for step in range(start, self.steps):
                progress = self._progress(step)
                micro_batches = self._gradients(progress, batches, monitor)
                signal_number, late = self._agree(progress, micro_batches, stop.received, saving.is_late())
                self._update(progress, sum(part.waited for part in micro_batches), monitor)
                if saving.is_due(step + 1, late) or signal_number:
                    self._save(step + 1)
                if probe is not None and probe.is_due(step + 1):
                    self._measure(monitor, step + 1, probe.record)
                if (hours := pace.hours(step + 1)) is not None and hours > LONG_HOURS:
                    estimate = f"At this speed the run takes {duration(3600 * hours)}."
                    monitor.print(f"{estimate} {advice(self.recipe, self.fabric.device)}")
                if signal_number:
                    raise Interrupted(
                        f"stopped at step {step + 1} of {self.steps} and saved; resume with: "
                        f"asterism pretrain --resume {self.run.path}",
                        signal_number,
                    )
            if examples is not None:
                monitor.examples(self.steps, lambda: examples(self.run))
        if first and (summary := verdict(self.run.metrics())) is not None:
            monitor.print(summary)
        return self.run

    def open_probe(self) -> None:
        """Prepare what the first process measures while it trains; only that process calls this, before `train`."""
        view = self.method.views[0]
        knn, data = self.recipe.monitor.knn, self.recipe.data
        self._probe = open_probe(knn, data, self.source, view, self.steps, self.steps_per_epoch)

    def _measure(self, monitor: Monitor, step: int, measure: Callable[[Encoder], dict[str, float]]) -> None:
        """Runs on the first process while the others wait; so on a CPU it uses all cores."""
        threads = torch.get_num_threads()
        if self.fabric.device.type == "cpu":
            torch.set_num_threads(allowed_cores())
        with monitor.paused():
            record = measure(self.method.encoder().eval())
        monitor.measured(step, record)
        torch.set_num_threads(threads)
        self.method.train()

    def _gradients(
        self, progress: Progress, batches: Iterator[tuple[Batch, float]], monitor: Monitor
    ) -> list[_MicroBatch]:
        """The micro-batches of a step, forward and backward."""
        # Our own code never draws from the global generator; this is for dropout inside a custom backbone.
        torch.manual_seed(fold(progress.seed, progress.step, self.fabric.global_rank) & 0xFFFFFFFF)
        count, made = self.recipe.trainer.accumulate, []
        for number in range(count):
            batch, waited = collectives.on_every_process(lambda: next(batches))
            with self.fabric.no_backward_sync(self.forward, enabled=number < count - 1):
                total = self.forward(batch, progress)
                losses = self.objective.losses
                self.fabric.backward(total / count)
            monitor.micro_batch(losses)
            made.append(_MicroBatch({name: value.detach().float() for name, value in losses.terms.items()}, waited))
        return made

    def _agree(
        self, progress: Progress, micro_batches: list[_MicroBatch], signal_number: int, late: bool
    ) -> tuple[int, bool]:
        """Agree in one collective whether all processes stop for a signal after this step, and whether they save.

        Raises on all processes, before the update, if the loss of one is not finite.
        """
        values = torch.stack([value for part in micro_batches for value in part.terms.values()])
        requests = torch.tensor([signal_number, late], device=values.device)
        agreed = collectives.all_reduce_max(torch.cat([(~values.isfinite()).any()[None].long(), requests]))
        broken, signal_number, late_number = agreed.tolist()
        if broken:
            raise self._not_finite(micro_batches, progress)
        return signal_number, bool(late_number)

    def _not_finite(self, micro_batches: list[_MicroBatch], progress: Progress) -> UserError:
        """The error, with the terms of the first micro-batch whose loss is not finite."""
        named = [
            ", ".join(f"{name} = {float(value)}" for name, value in part.terms.items() if not value.isfinite())
            for part in micro_batches
        ]
        terms = next(filter(None, named), "a term of another process")
        sound = all(bool(whole(parameter).isfinite().all()) for parameter in self.method.parameters())
        cause = "This step did not change the weights" if sound else "An earlier step made the weights not finite"
        return UserError(
            f"the loss is not finite at step {progress.step}: {terms}. {cause}; {self._last_checkpoint()}. Try a lower "
            "optim.lr, a longer optim.warmup_epochs, optim.clip=3 or trainer.precision=32"
        )

    def _check_gradient(self, norm: Tensor, progress: Progress) -> None:
        if not norm.isfinite():
            raise UserError(
                f"the gradient is not finite at step {progress.step} although the loss is. This step did not change "
                f"the weights; {self._last_checkpoint()}. Try trainer.precision=32 or a lower optim.lr"
            )

    def _update(self, progress: Progress, waited: float, monitor: Monitor) -> None:
        """Clip the gradients, update the weights and the method's other state, and report the step."""
        lr = set_schedules(self.optimizer, self.recipe.optim, progress, self.batch_size)
        frozen = list(self.method.frozen(progress))
        for parameter in frozen:
            parameter.grad = None
        norm = clip_gradients(self.method.parameters(), self.recipe.optim)
        self._check_gradient(norm, progress)
        self.stepper.step()
        self.stepper.zero_grad()
        self.method.after_update(progress)
        monitor.step(
            progress.step + 1,
            images=self.batch_size,
            waited=waited,
            settled=not frozen,
            numbers={"lr": lr, "gradient_norm": norm, "epoch": (progress.step + 1) / self.steps_per_epoch},
        )

    def _batches(self, start: int) -> Iterator[tuple[Batch, float]]:
        """Micro-batches on the device, each with the seconds spent waiting for it."""
        data = self.recipe.data
        loader = Loader(
            self.source,
            Views(self.method.views),
            data,
            batch_size=self.batch_size,
            accumulate=self.recipe.trainer.accumulate,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            seed=self.recipe.trainer.seed,
            start_step=start,
            steps=self.steps,
        )
        bad = BadImageLog(self.run.path / "bad_images.jsonl", data.max_bad_share, len(self.source))
        iterator = iter(loader)
        while True:
            before = time.perf_counter()
            raw = next(iterator)
            waited = time.perf_counter() - before
            bad.record(raw.bad, raw.seen)
            yield to_batch(raw, self.fabric.device, data.mean, data.std), waited

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """On a CPU, use the number of threads that `train.cores` assigns to this process."""
        before, workers = torch.get_num_threads(), self.recipe.data.workers
        assert isinstance(workers, int)
        if self.fabric.device.type == "cpu":
            count = thread_count(trained_parameters(self.method), self.fabric.world_size, workers)
            torch.set_num_threads(min(before, count))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _save(self, step: int) -> None:
        state = checkpoint.capture(self.method, self.optimizer, step, self._facts())
        broken = checkpoint.not_finite(state, {name for name, _ in self.method.named_parameters()})
        if broken:
            raise UserError(
                f"the weights are not finite after step {step}: {', '.join(broken[:3])}. They were not saved; "
                f"{self._last_checkpoint()}. Try a lower optim.lr, a longer optim.warmup_epochs or optim.clip=3"
            )

        def write() -> None:
            checkpoint.write(state, self.run.checkpoints, self.recipe.checkpoint)
            export(self.recipe, state, self.run.weights)

        collectives.on_first_process(write)

    def _facts(self) -> checkpoint.Facts:
        return checkpoint.Facts(
            steps=self.steps,
            images=len(self.source),
            batch_size=self.batch_size,
            data=self.source.fingerprint,
            recipe=self.recipe.model_dump(mode="json"),
            frozen_encoders={name: frozen.fingerprint for name, frozen in self.method.frozen_encoders.items()},
        )

    def _last_checkpoint(self) -> str:
        saved = checkpoint.steps(self.run.checkpoints)
        return f"the last checkpoint, of step {saved[-1]}, is good" if saved else "there is no checkpoint yet"

    def _progress(self, step: int) -> Progress:
        return Progress(step, self.steps, self.steps_per_epoch, self.recipe.trainer.seed)

    def _announce(self, monitor: Monitor) -> None:
        trained, world = trained_parameters(self.method), self.fabric.world_size
        monitor.print(describe(self.recipe, len(self.source), trained, self.fabric.device, world))


@dataclass(frozen=True)
class _MicroBatch:
    """The loss terms of a micro-batch, and the seconds spent waiting for its data."""

    terms: dict[str, Tensor]
    waited: float


class _Objective(nn.Module):
    """A method's loss as a `forward`, which is what DDP and FSDP hook into."""

    def __init__(self, method: Method, precision: str) -> None:
        super().__init__()
        self.method = method
        self.losses: Losses
        self._autocast = precision == "bf16"

    def forward(self, batch: Batch, progress: Progress) -> Tensor:
        device = batch.keys.device.type
        with torch.autocast(device, torch.bfloat16) if self._autocast else contextlib.nullcontext():
            self.losses = self.method.loss(batch, progress)
        return self.losses.total


class _SaveSchedule:
    """Saves every so many steps, every so many minutes, and at the end."""

    def __init__(self, config: checkpoint.CheckpointConfig, steps: int, steps_per_epoch: int) -> None:
        self._every = config.every_steps or steps_per_epoch
        self._seconds = 60 * config.every_minutes if config.every_minutes else float("inf")
        self._steps = steps
        self._last = time.monotonic()

    def is_late(self) -> bool:
        """Whether the last checkpoint is too old, by this process's clock."""
        return time.monotonic() - self._last > self._seconds

    def is_due(self, step: int, late: bool) -> bool:
        due = step % self._every == 0 or step == self._steps or late
        if due:
            self._last = time.monotonic()
        return due
