"""Pretraining as a kind of run: a method, views of unlabelled images, and an encoder as the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import RenderableType

from asterism.data import BadImageLog, Source, Views, open_source, to_batch, view_loader
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.source import sampled_contents
from asterism.nn.encoder import Encoder
from asterism.nn.learner import trained_parameters
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.nn.weights.description import weights_options
from asterism.nn.weights.load import encoder_of, load_encoder, load_weights_into, read_weights
from asterism.ops import collectives
from asterism.train.building import build_method, export, export_start, exported_step
from asterism.train.checkpoint import Facts, State
from asterism.train.job import Job, all_cores, timed
from asterism.train.kind import Init, Kind, Opened
from asterism.train.online_quality import START, Quality, is_behind_start, open_quality, verdict
from asterism.train.optim import build_optimizer, set_schedules
from asterism.train.recipe import Recipe
from asterism.train.resolve import advice, describe, resolve, with_network_of
from asterism.train.run import Run, open_pretrained
from asterism.types import Batch, Progress


class OpenedPretraining(Opened[Recipe, Run]):
    """The method and its images; with masks only if a view needs them, because reading masks takes time."""

    def __init__(self, recipe: Recipe, init: Init | None = None, run: Run | None = None) -> None:
        self.recipe, self._init, self._loaded = with_network_of(recipe, init), init, None
        self.method = build_method(self.recipe)
        if init is not None:
            self._loaded = load_weights_into(self.method.backbone, init.source, **init.options)
            self.method.backbone_was_loaded()
        data = self.recipe.data
        self.has_masks = any(view.segments for view in self.method.views)
        self.source = (open_segmented if self.has_masks else open_source)(data.path, data.split)

    @property
    def parameters(self) -> int:
        return trained_parameters(self.method)

    def resolved(self, device: torch.device, processes: int) -> Recipe:
        return resolve(self.recipe, len(self.source), device, processes, self.method.backbone.architecture.init)

    def job(self, recipe: Recipe, run: Run, fabric: Fabric) -> Pretraining:
        return Pretraining(recipe, self, run, fabric.device)

    def started_from(self) -> list[str]:
        if self._init is None or self._loaded is None:
            return []
        lines = [f"Started from {self._init.source}: {self._loaded}"]
        if self._loaded.pixels not in (None, (self.method.mean, self.method.std)):
            pixels = self._loaded.pixels
            lines.append(f"Its pixels had mean and std {pixels}; set data.mean and data.std to these, if unsure")
        return lines

    def start(self, run: Run) -> Encoder | None:
        """The encoder that the run started from, if it keeps the better one."""
        if not self.recipe.monitor.keep_better:
            return None
        if self._init is not None:
            return encoder_of(read_weights(self._init.source, weights_options(**self._init.options)), self._init.source)
        return load_encoder(run.start) if run.start.is_file() else None

    @property
    def images_with_labels(self) -> Source:
        """The images with the labels that their folders give them."""
        data = self.recipe.data
        return open_source(data.path, data.split) if self.has_masks else self.source


class Pretraining(Job[Batch]):
    """A resolved recipe, its method and its images."""

    verb = "pretrain"

    def __init__(self, recipe: Recipe, opened: OpenedPretraining, run: Run, device: torch.device) -> None:
        assert isinstance(recipe.data.workers, int)
        self.recipe, self.source, self.run = recipe, opened.source, run
        self.learner = self.method = opened.method
        self.trainer, self.checkpoint, self.logging = recipe.trainer, recipe.checkpoint, recipe.monitor
        self.clipping = recipe.optim
        self.images, self.workers = len(opened.source), recipe.data.workers
        self._contents = sampled_contents(opened.source)
        self.start: Encoder | None = None  # on the first process, if the run may keep it
        collectives.on_first_process(lambda: self._open_quality(opened, device))

    def _open_quality(self, opened: OpenedPretraining, device: torch.device) -> None:
        """Prepare what the first process measures while it trains."""
        config = self.recipe.monitor.knn
        if config is not None:
            self.start = opened.start(self.run)
            quality = open_quality(config, opened.images_with_labels, self.method.views[0])
            self.measurement = _Measuring(self, quality, self._interval(config.every_epochs), device)

    def _interval(self, every_epochs: float | None) -> int | None:
        if every_epochs is not None:
            return max(1, round(every_epochs * self.steps_per_epoch))
        return None if self.steps is None else max(1, self.steps // 10)

    def optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(self.method, self.recipe.optim)

    def set_schedules(self, optimizer: torch.optim.Optimizer, progress: Progress) -> float:
        return set_schedules(optimizer, self.recipe.optim, progress, self.batch_size)

    def batches(self, start: int, fabric: Fabric) -> Iterator[tuple[Batch, float]]:
        data = self.recipe.data
        loader = view_loader(
            self.source,
            Views(self.method.views),
            data,
            batch_size=self.batch_size,
            accumulate=self.trainer.accumulate,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            seed=self.trainer.seed,
            start_step=start,
            steps=self.end,
        )
        bad = BadImageLog(self.run.path / "bad_images.jsonl", data.max_bad_share, len(self.source))
        for raw, waited in timed(iter(loader)):
            bad.record(raw.bad, raw.seen)
            yield to_batch(raw, fabric.device, data.mean, data.std), waited

    def facts(self) -> Facts:
        return Facts(
            steps=self.steps,
            images=self.images,
            batch_size=self.batch_size,
            data=self.source.fingerprint,
            contents=self._contents,
            recipe=self.recipe.model_dump(mode="json"),
            frozen_encoders={name: frozen.fingerprint for name, frozen in self.method.frozen_encoders.items()},
        )

    def saved(self, state: State) -> None:
        """Export the trained encoder, or the one that the run started from while that measures better."""
        if self.start is None:
            export(self.recipe, state, self.run.weights)
            return
        if not self.run.start.is_file():
            self.run.start.parent.mkdir(exist_ok=True)
            self.start.save(self.run.start)
        if self._keeps_start():
            export_start(self.start, state, self.run.weights)
        else:
            export(self.recipe, state, self.run.weights)

    def _keeps_start(self) -> bool:
        return self.start is not None and is_behind_start(self.run.metrics())

    def repair(self, state: State, finished: bool, report: Callable[[str], None]) -> None:
        def exported() -> bool:
            kept = self.start.step if self.start is not None and self._keeps_start() else state.step
            stale = exported_step(self.run) != kept
            if stale:
                self.saved(state)
            return stale

        if collectives.on_first_process(exported):
            report(f"Exported encoder.safetensors again, from the checkpoint of step {state.step}")

    def describe(self, fabric: Fabric) -> RenderableType:
        return describe(self.recipe, self.images, trained_parameters(self.method), fabric.device, fabric.world_size)

    def advice(self, device: torch.device) -> str:
        return advice(device)

    def verdict(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        return verdict(records)


class _Measuring:
    """Measures the quality of the method's encoder on the first process, while the others wait."""

    def __init__(self, job: Pretraining, quality: Quality, interval: int | None, device: torch.device) -> None:
        self.interval = interval
        self._job, self._quality, self._device = job, quality, device
        self._minutes = job.trainer.minutes

    def measure(self, step: int) -> dict[str, float]:
        """In percent; before training also that of raw pixels of the same images."""
        name = self._quality.name
        with all_cores(self._device):
            encoder = self._job.method.encoder().eval()
            if self._minutes is not None:
                self._quality, self._minutes = self._quality.within(self._minutes, encoder), None
            if step == 0 and self._job.start is not None:
                start = self._quality.accuracy(self._job.start.to(self._device))
                record = {name: start, f"{name}_{START}": start}
            else:
                record = {name: self._quality.accuracy(encoder)}
            if step == 0:
                pixels = pixel_encoder().to(self._device)
                record[f"{name}_pixels"] = self._quality.accuracy(pixels, encoder.image_size)
        self._job.method.train()
        return record


PRETRAINING = Kind("pretrain", Recipe, Run, open_pretrained, OpenedPretraining)
