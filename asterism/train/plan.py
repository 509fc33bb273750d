"""An estimate of the FLOPs, memory, time and disk that a run needs, made before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Group
from rich.table import Table

from asterism.ops.launched import launched
from asterism.train.cores import check_devices, device_type, process_count, training_threads
from asterism.train.cost import StepCost, step_cost
from asterism.train.kind import Init
from asterism.train.outlook import LONG_HOURS, of_minutes, of_steps
from asterism.train.pretraining import OpenedPretraining
from asterism.train.recipe import Recipe
from asterism.train.resolve import advice, describe, with_network_of
from asterism.train.units import duration, size


@dataclass(frozen=True)
class Plan:
    """A resolved recipe and its cost on this device."""

    recipe: Recipe
    images: int
    parameters: int  # trained
    cost: StepCost
    device: torch.device
    processes: int

    @property
    def steps(self) -> int:
        """In a run of minutes, as many as fit."""
        trainer = self.recipe.trainer
        if trainer.minutes is not None:
            return max(1, round(60 * trainer.minutes / self.cost.seconds))
        assert trainer.steps is not None
        return trainer.steps

    @property
    def steps_per_epoch(self) -> int:
        return self.images // int(self.recipe.trainer.batch_size)

    @property
    def hours(self) -> float:
        """Hours of training, without waiting for data."""
        return self.steps * self.cost.seconds / 3600

    @property
    def disk(self) -> int:
        """Bytes of the checkpoints that are kept, plus one that is being written."""
        return (self.recipe.checkpoint.keep_last + 1) * self.cost.checkpoint

    def __rich__(self) -> Group:
        about = describe(self.recipe, self.images, self.parameters, self.device, self.processes)
        return Group(about, self.table(), *filter(None, [self._outlook]))

    @property
    def _outlook(self) -> str | None:
        minutes, cheaper = self.recipe.trainer.minutes, advice(self.device)
        if minutes is not None:
            return of_minutes(minutes, self.steps, self.steps_per_epoch, cheaper)
        return of_steps(self.hours, self.steps, cheaper) if self.hours > LONG_HOURS else None

    def table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("arithmetic", f"{self.cost.flops / 1e9:,.1f} GFLOP per step and process")
        table.add_row("memory", f"about {size(self.cost.memory)} per process, without prefetched images")
        table.add_row("step", f"about {duration(self.cost.seconds)} on this {self.device.type}, without views")
        table.add_row("epoch", f"about {duration(self.cost.seconds * self.steps_per_epoch)}")
        table.add_row("whole run", f"about {duration(3600 * self.hours)}")
        table.add_row("disk", f"about {size(self.disk)}")
        return table


def plan(recipe: Recipe, init: Init | None = None) -> Plan:
    """Estimate the cost of a run on this machine without starting it."""
    if launched() is None:
        check_devices(recipe.trainer)
    opened = OpenedPretraining(with_network_of(recipe, init))
    recipe, method, trained = opened.recipe, opened.method, opened.parameters
    device, place = torch.device(device_type(recipe.trainer)), launched()
    processes = process_count(recipe.trainer, trained) if place is None else place.size
    recipe = opened.resolved(device, processes)
    trainer = recipe.trainer
    assert isinstance(trainer.batch_size, int)
    assert isinstance(recipe.data.workers, int)
    stay = processes > 1 or trainer.accumulate > 1
    with training_threads(device, trained, processes, recipe.data.workers):
        own = trainer.batch_size // processes
        cost = step_cost(
            method.to(device),
            recipe.optim,
            own,
            trainer.accumulate,
            precision=trainer.precision,
            gradients_stay=stay,
        )
    return Plan(recipe, len(opened.source), trained, cost, device, processes)
