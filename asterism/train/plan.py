"""An estimate of the FLOPs, memory, time and disk that a run needs, made before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Group
from rich.table import Table

from asterism.train.cost import StepCost
from asterism.train.memory_estimate import Memory
from asterism.train.recipe import Recipe
from asterism.train.resolve import describe
from asterism.train.units import duration, size

LONG_HOURS = 2.0  # a longer run prints its duration and how to shorten it


@dataclass(frozen=True)
class Plan:
    """A resolved recipe and its cost on this device."""

    recipe: Recipe
    images: int
    parameters: int  # trained
    cost: StepCost
    device: torch.device
    processes: int
    memory: Memory | None = None  # None where it cannot be computed without running a step

    @property
    def steps(self) -> int:
        assert self.recipe.trainer.steps is not None
        return self.recipe.trainer.steps

    @property
    def hours(self) -> float:
        """Hours of training, without waiting for data."""
        return self.steps * self.cost.seconds / 3600

    @property
    def disk(self) -> int:
        """Bytes of the checkpoints that are kept, plus one that is being written."""
        return (self.recipe.checkpoint.keep_last + 1) * self.cost.checkpoint

    @property
    def needed_memory(self) -> str:
        """The memory, and what checkpointing would make of it."""
        if self.memory is None:
            return size(self.cost.memory)
        if self.recipe.backbone.checkpointing:
            return size(self.memory.peak_checkpointed)
        less = f"with backbone.checkpointing=true {size(self.memory.peak_checkpointed)}"
        return f"{size(self.memory.peak)} ({less})"

    def __rich__(self) -> Group:
        about = describe(self.recipe, self.images, self.parameters, self.device, self.processes)
        return Group(about, self.table(), *([advice(self.recipe, self.device)] if self.hours > LONG_HOURS else []))

    def table(self) -> Table:
        steps_per_epoch = self.images // int(self.recipe.trainer.batch_size)
        table = Table.grid(padding=(0, 2))
        table.add_row("arithmetic", f"{self.cost.flops / 1e9:,.1f} GFLOP per step and process")
        table.add_row("memory", f"about {self.needed_memory} per process, without prefetched images")
        table.add_row("step", f"about {duration(self.cost.seconds)} on this {self.device.type}, without views")
        table.add_row("epoch", f"about {duration(self.cost.seconds * steps_per_epoch)}")
        table.add_row("whole run", f"about {duration(3600 * self.hours)}")
        table.add_row("disk", f"about {size(self.disk)}")
        return table


def advice(recipe: Recipe, device: torch.device) -> str:
    """How to shorten a long run."""
    smaller = "smaller views (backbone.image_size), larger patches (backbone.patch_size)"
    length = f"fewer steps (trainer.steps, now {recipe.trainer.steps:,}), or a time limit (trainer.minutes=30)"
    if device.type == "cpu":
        return f"To shorten it: {length}; {smaller}; a small network (backbone.dim=192 backbone.depth=4); or a GPU"
    return f"To shorten it: {length}; {smaller}; more devices (trainer.devices)"
