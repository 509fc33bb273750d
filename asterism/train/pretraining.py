"""Pretraining as a job of the training loop: a method, views of unlabelled images, and an encoder as the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import RenderableType

from asterism.data import BadImageLog, Source, Views, to_batch, view_loader
from asterism.methods.base import Method
from asterism.nn.learner import trained_parameters
from asterism.train.checkpoint import Facts, State
from asterism.train.exporting import export
from asterism.train.job import Job, all_cores, timed
from asterism.train.optim import build_optimizer, set_schedules
from asterism.train.plan import advice
from asterism.train.probe import Probe, open_probe
from asterism.train.recipe import Recipe
from asterism.train.resolve import describe
from asterism.train.run import Run
from asterism.train.verdict import verdict
from asterism.types import Batch, Progress
from asterism.viz.page import Gallery

Examples = Callable[[Run], Mapping[str, Gallery]]


class Pretraining(Job[Batch]):
    """A recipe, its method and its images. examples: draws pictures of the finished run for its trackers."""

    verb = "pretrain"

    def __init__(
        self, recipe: Recipe, source: Source, method: Method, run: Run, examples: Examples | None = None
    ) -> None:
        assert isinstance(recipe.data.workers, int)
        self.recipe, self.source, self.run = recipe, source, run
        self.learner = self.method = method
        self.trainer, self.checkpoint, self.logging = recipe.trainer, recipe.checkpoint, recipe.monitor
        self.clipping = recipe.optim
        self.images, self.workers = len(source), recipe.data.workers
        self._examples = examples

    def open_probe(self, device: torch.device) -> None:
        """Prepare what the first process measures while it trains; only that process calls this."""
        view = self.method.views[0]
        knn, data = self.recipe.monitor.knn, self.recipe.data
        probe = open_probe(knn, data, self.source, view, self.steps, self.steps_per_epoch)
        self.measurement = None if probe is None else _Probing(probe, self.method, device)

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
            steps=self.steps,
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
            recipe=self.recipe.model_dump(mode="json"),
            frozen_encoders={name: frozen.fingerprint for name, frozen in self.method.frozen_encoders.items()},
        )

    def saved(self, state: State) -> None:
        export(self.recipe, state, self.run.weights)

    def describe(self, fabric: Fabric) -> RenderableType:
        return describe(self.recipe, self.images, trained_parameters(self.method), fabric.device, fabric.world_size)

    def advice(self, device: torch.device) -> str:
        return advice(self.recipe, device)

    def verdict(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        return verdict(records)

    def examples(self) -> Mapping[str, Gallery]:
        return {} if self._examples is None else self._examples(self.run)


class _Probing:
    """A probe of the method's encoder. It runs on the first process while the others wait."""

    def __init__(self, probe: Probe, method: Method, device: torch.device) -> None:
        self._probe, self._method, self._device = probe, method, device

    def is_due(self, step: int) -> bool:
        return self._probe.is_due(step)

    def measure(self, step: int) -> dict[str, float]:
        with all_cores(self._device):
            encoder = self._method.encoder().eval()
            record = self._probe.first_record(encoder) if step == 0 else self._probe.record(encoder)
        self._method.train()
        return record
