"""Fine-tuning as a job of the training loop: a task, labelled images, and the best weights on held-out ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import RenderableType
from rich.table import Table

from asterism.data import BadImageLog, Loader, Source, Subset
from asterism.data.order import EpochOrder, MicroBatches
from asterism.data.sources.source import sampled_contents
from asterism.finetuning.labelled import LabelledParts
from asterism.finetuning.learner import FineTuned
from asterism.finetuning.measuring import measured
from asterism.finetuning.model import keep_probe, save_model, saved_step
from asterism.finetuning.optim import build_optimizer, learning_rate, set_learning_rates
from asterism.finetuning.probing import Probe, start_from
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.finetuning.run import FinetunedRun
from asterism.finetuning.task import Task, TaskBatch
from asterism.nn.learner import trained_parameters
from asterism.ops import collectives
from asterism.train.checkpoint import Facts, State
from asterism.train.clock import fitting_stride
from asterism.train.job import Job, timed
from asterism.train.resolve import length
from asterism.types import Progress

_MOST_MEASUREMENTS = 50  # unless a run sets it


class FineTuning(Job[TaskBatch]):
    """A resolved recipe, the task with its initial weights, and the labelled images."""

    verb = "finetune"

    def __init__(
        self,
        recipe: FinetuneRecipe,
        parts: LabelledParts,
        task: Task,
        run: FinetunedRun,
        device: torch.device,
        probe: Probe | None = None,
    ) -> None:
        """probe: whose weights the task starts from, in a new run."""
        assert isinstance(recipe.data.workers, int)
        self.recipe, self.parts, self.device = recipe, parts, device
        self.run: FinetunedRun = run
        self.task, self.probe = task, probe
        self.learner = self.model = FineTuned(task, recipe.average)
        self.trainer, self.checkpoint, self.logging = recipe.trainer, recipe.checkpoint, recipe.monitor
        self.clipping = recipe.optim
        self.images, self.workers = len(parts.train), recipe.data.workers
        self._contents = sampled_contents(parts.everything)
        if parts.held_out is not None:
            self.measurement = _Validation(self, parts.held_out)

    def optimizer(self) -> torch.optim.Optimizer:
        config = self.recipe.optim
        return build_optimizer(self.task, config, config.peak_lr(self.batch_size))

    def set_schedules(self, optimizer: torch.optim.Optimizer, progress: Progress) -> float:
        config = self.recipe.optim
        return set_learning_rates(optimizer, learning_rate(config, progress, config.peak_lr(self.batch_size)))

    def batches(self, start: int, fabric: Fabric) -> Iterator[tuple[TaskBatch, float]]:
        data = self.recipe.data
        order = EpochOrder(self.images, self.batch_size, self.trainer.seed)
        steps, accumulate = range(start, self.end), self.trainer.accumulate
        loader = Loader(
            self.parts.train,
            self.task.samples(),
            MicroBatches(order, steps, accumulate, fabric.global_rank, fabric.world_size),
            workers=self.workers,
            prefetch=data.prefetch,
            pin_memory=True,
        )
        bad = BadImageLog(self.run.path / "bad_images.jsonl", data.max_bad_share, self.images)
        for loaded, waited in timed(iter(loader)):
            bad.record(loaded.bad, loaded.seen)
            yield loaded.made.to(fabric.device), waited

    def facts(self) -> Facts:
        return Facts(
            steps=self.steps,
            images=len(self.parts.everything),
            batch_size=self.batch_size,
            data=self.parts.everything.fingerprint,
            contents=self._contents,
            recipe=self.recipe.model_dump(mode="json"),
        )

    def saved(self, state: State) -> None:
        """Without held-out images the last weights are the result."""
        if self.measurement is None:
            self.model.copy.load_state_dict(self.model.weights_in(state.method))
            self.write_copy(state.step)

    def write_copy(self, step: int) -> None:
        """The model of a step; the first one is the probe, if there is one, fitted to all labelled images."""
        if step == 0 and self.probe is not None:
            start_from(self.model.copy, self.probe.kept)
        save_model(self.model.copy, self.run.path, step)
        if step == 0 and self.probe is not None:
            keep_probe(self.run.path)

    def repair(self, state: State, finished: bool, report: Callable[[str], None]) -> None:
        path, best = self.run.model, int(self.model.best_step)
        written = collectives.on_first_process(lambda: saved_step(self.run.path))
        if self.measurement is None:
            if written != state.step:
                collectives.on_first_process(lambda: self.saved(state))
                report(f"Wrote {path} again, from the checkpoint of step {state.step}")
            return
        # One of a later step than the checkpoint is measured and written again.
        if not self.model.best_score.isfinite() or (written is not None and (written == best or written > state.step)):
            return
        self.model.best_score.fill_(-torch.inf)
        self.model.best_step.fill_(0)
        report(
            f"{path} is not the model of step {best}, which was the best so far, and no checkpoint has its weights; "
            "the best of the measurements from here on is kept instead"
        )
        if finished:
            self.measurement.measure(state.step)

    def ends_early(self, step: int) -> bool:
        """Whether the best result is `patience` measurements old: a function of the learner's buffers and the step.

        Never while the best result is 0: a metric such as AP may stay there for long although the loss falls. A good
        start that training never beats, at step 0, counts like any other.
        """
        config, interval = self.recipe.validation, self.interval
        if config is None or config.patience is None or interval is None or step == self.steps:
            return False
        late = step - int(self.model.best_step) >= config.patience * interval
        return late and float(self.model.best_score) > 0

    @property
    def interval(self) -> int | None:
        """Steps between measurements, see `Measurement`."""
        every = None if self.recipe.validation is None else self.recipe.validation.every_epochs
        if every is not None:
            return max(1, round(every * self.steps_per_epoch))
        return None if self.steps is None else max(1, self.steps_per_epoch, self.steps // _MOST_MEASUREMENTS)

    def describe(self, fabric: Fabric) -> RenderableType:
        recipe, source = self.recipe, self.recipe.source
        assert source.network is not None
        held_out = "" if self.parts.held_out is None else f", {len(self.parts.held_out):,} held out"
        head: Any = getattr(recipe.task, "head", None)
        table = Table.grid(padding=(0, 2))
        table.add_row("task", f"{recipe.task.name}{'' if head is None else f', head {head.name}'}")
        table.add_row("start", f"{source.path} ({source.weights} weights), {source.network.image_size} px")
        table.add_row("parameters", f"{trained_parameters(self.learner) / 1e6:.1f} M trained")
        table.add_row("data", f"{recipe.data.path}, {self.images:,} images{held_out}, {len(self.task.classes)} classes")
        table.add_row("length", length(self.trainer, self.images))
        rate = recipe.optim.peak_lr(self.batch_size)
        table.add_row("learning rate", f"{rate:.3g} at its peak, layer decay {recipe.optim.layer_decay}")
        place = f"{fabric.world_size} × {fabric.device.type}, precision {self.trainer.precision}"
        table.add_row("device", f"{place}, {self.workers} data workers")
        return table

    def advice(self, device: torch.device) -> str:
        more = "a GPU" if device.type == "cpu" else "more devices (trainer.devices)"
        return f"smaller images (source.image_size), a smaller network, a frozen one (--task probe), or {more}"

    def verdict(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """The best result on held-out training images, which is that of model.safetensors."""
        name = f"held_out/{self.task.primary}"
        values = [(record[name], record["step"]) for record in records if name in record]
        if not values:
            return None
        if self.run.probe is not None:
            return f"{against_probe(self.task.primary, values, int(self.model.best_step))}, in {self.run.model}"
        best, step = max(values, key=lambda pair: (pair[0], -pair[1]))
        return (
            f"Best {self.task.primary} on held-out training images: {best:.2f} at step {step}; its weights are in "
            f"{self.run.model}"
        )


def against_probe(primary: str, values: Sequence[tuple[float, int]], kept: int) -> str:
    """The score on held-out images of the probe and of fine-tuning, and which is kept.

    values: scores with their steps, that of the probe first. kept: the step of the model.
    """
    probe = values[0][0]
    best, step = max(values[1:], key=lambda pair: (pair[0], -pair[1]), default=values[0])
    found = f"{primary} on held-out training images: linear probe of the frozen network {probe:.2f}"
    if len(values) > 1:
        found += f", fine-tuned {best:.2f} at best (step {step})"
    if kept > 0:
        return f"{found}. Kept: fine-tuned"
    lead = ", because so small a lead may be chance" if best > probe else ""
    return f"{found}. Kept: the probe{lead}, fitted to all labelled images"


class _Validation:
    """The task's metric on held-out images, measured by all processes together; writes the model when it improves."""

    def __init__(self, job: FineTuning, images: Source) -> None:
        self._images = images
        self._job, self.interval = job, job.interval
        self._minutes = job.trainer.minutes

    def measure(self, step: int) -> dict[str, float]:
        job = self._job
        task = job.model.final(job.device)
        if self._minutes is not None:
            self._images, self._minutes = self._within(task, self._minutes), None
        found = measured(task, self._images, task.choosing_metric())
        task.decide(found)
        score = found[job.task.primary]
        if step == 0 and job.probe is not None:
            # Fine-tuning has many measurements, and is to win by more than the luck of the best of them.
            score += task.doubt(score, len(self._images))
        if score > float(job.model.best_score):
            job.model.best_score.fill_(score)
            job.model.best_step.fill_(step)
            collectives.on_first_process(lambda: job.write_copy(step))
        return {f"held_out/{name}": value for name, value in found.items()}

    def _within(self, task: Task, minutes: float) -> Source:
        """Fewer images, if all of them would take too much of the run's minutes."""
        stride = fitting_stride(
            minutes, len(self._images), lambda few: measured(task, Subset(self._images, few), task.metric())
        )
        return Subset(self._images, range(0, len(self._images), collectives.broadcast_object(stride)))
