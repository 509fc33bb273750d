"""A memory of embeddings, and the prototypes that it organises itself into (SOP, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.config import Config
from asterism.nn.memory_bank import Memory
from asterism.ops.neighbours import nearest_rows
from asterism.ops.prototypes import (
    Contribution,
    Prototypes,
    organize,
    permuted_blocks,
    supports_in_memory,
    supports_outside_anchors,
)
from asterism.ops.random import fold, generator
from asterism.ranges import CountFromTwo, CountFromZero, Few, PositiveShare, ShareBelowOne
from asterism.types import Progress


class PrototypesConfig(Config):
    """How image prototypes are formed; section 2.2 and appendix A."""

    memory: CountFromTwo = 65536  # rows N_C (table C.5)
    count: CountFromTwo = 4096  # anchors K of a task (table 10)
    kept: PositiveShare = 1.0
    # share of the anchors, chosen at random, that become prototypes: all in the paper, half in the published code,
    # where the others are still excluded as neighbours
    neighbours: CountFromZero = 8  # support embeddings k per anchor (table 8)
    tasks: Few | None = None  # draws of prototypes per step (table C.1); None: 4, or all blocks
    anchors: Literal["random", "partition", "fixed", "fixed-places"] = "random"
    # random: new rows at every step; partition: blocks of a random order of the whole memory (MaSSL); fixed: vectors
    # drawn once (collapses, table C.7); fixed-places: the same rows of the memory, with their current contents
    search: Literal["non-anchors", "whole-memory"] = "non-anchors"
    # non-anchors: k rows that are not anchors, and the anchor; whole-memory: k rows, the first of which is the anchor
    contribution: Contribution = "similarity"  # weight of a support's vote (table 9)
    smoothing: ShareBelowOne = 0.1  # share of the anchor's vote that goes to other prototypes

    default_tasks: ClassVar[int] = 4

    @property
    def task_count(self) -> int:
        if self.anchors == "partition":
            return self.memory // self.count
        return self.tasks or self.default_tasks

    @property
    def prototypes(self) -> int:
        """The number of prototypes per task."""
        return int(self.kept * self.count + 1e-9)  # so that 6/13 of 13 is 6 despite rounding

    @model_validator(mode="before")
    @classmethod
    def _without_lists(cls, values: Any) -> Any:
        """Version 0.1 could keep lists of neighbours between steps, which found the same ones."""
        return {k: v for k, v in values.items() if k != "neighbour_lists"} if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _memory_suffices(self) -> PrototypesConfig:
        if self.memory < self.count + self.neighbours:
            raise ValueError(
                f"a memory of {self.memory} rows is smaller than {self.count} anchors + {self.neighbours} neighbours; "
                f"raise memory to at least {self.count + self.neighbours}, or lower count"
            )
        if self.prototypes < 2:
            raise ValueError(
                f"kept = {self.kept} of {self.count} anchors are fewer than 2 prototypes; raise kept or count"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> PrototypesConfig:
        if self.anchors == "partition" and (self.neighbours or self.tasks or self.kept < 1):
            raise ValueError(
                "anchors: partition makes every row a prototype, once; set neighbours: 0 and leave out tasks and kept"
            )
        if self.search == "whole-memory" and self.neighbours == 0:
            raise ValueError("search: whole-memory counts the anchor among the neighbours; set neighbours to 1 or more")
        return self


class PatchPrototypesConfig(PrototypesConfig):
    """How patch prototypes are formed; section 2.3."""

    memory: CountFromTwo = 8192  # rows N_p (table C.6)
    count: CountFromTwo = 512  # table C.3
    neighbours: CountFromZero = 0  # table 8: neighbours do not help patches

    default_tasks: ClassVar[int] = 1


@dataclass(frozen=True)
class Anchors:
    """The draw of one task, as rows of the memory."""

    drawn: Int[Tensor, " a"]
    kept: Int[Tensor, " k"]  # some of those drawn, in the order of their prototypes


class PrototypeMemory(nn.Module):
    """A memory, and the prototypes formed from it."""

    fixed: Float[Tensor, "t k d"] | None

    def __init__(self, config: PrototypesConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.memory = Memory(config.memory, dim)
        self.register_buffer("fixed", self._drawn_once() if config.anchors == "fixed" else None)

    def draw(self, progress: Progress, use: int) -> list[Anchors]:
        """The anchors of a step's tasks; a partition, which uses every row once, is a single draw for all tasks.

        They are the same in every process and for every micro-batch.
        """
        config = self.config
        step = progress.step if config.anchors != "fixed-places" else -1
        if config.anchors == "partition":
            order = self.memory.sample(config.memory, generator(fold(progress.seed, use, step)))
            return [Anchors(order, order)]
        if self.fixed is not None:  # stored after the rows of the memory, see `prototypes`
            places = config.memory + torch.arange(config.count, device=self.memory.rows.device)
            return [Anchors(places, places[: config.prototypes])] * config.task_count
        keys = [fold(progress.seed, use, step, task) for task in range(config.task_count)]
        drawn = [self.memory.sample(config.count, generator(key)) for key in keys]
        return [
            Anchors(rows, rows[: config.prototypes]) for rows in drawn
        ]  # rows are in random order, so the first are a random choice

    @torch.no_grad()
    def prototypes(self, draws: Sequence[Anchors]) -> Iterator[Prototypes]:
        """D and Y of every task, one at a time: together they may be larger than the network."""
        config, rows = self.config, self.memory.rows
        if config.anchors == "partition":
            yield from permuted_blocks(rows, draws[0].drawn, config.count)
            return
        for task, anchors in enumerate(draws):
            if self.fixed is not None:
                rows = torch.cat([self.memory.rows, self.fixed[task]])
            if config.search == "whole-memory":
                supports = supports_in_memory(rows, anchors.kept, config.neighbours, nearest_rows)
            else:
                supports = supports_outside_anchors(rows, anchors.kept, config.neighbours, nearest_rows, anchors.drawn)
            yield organize(rows, supports, config.contribution, config.smoothing)

    def _drawn_once(self) -> Float[Tensor, "t k d"]:
        """Anchors of every task, distributed like the initial memory but not in it: no row is its own neighbour."""
        config = self.config
        return F.normalize(torch.randn(config.task_count, config.count, self.memory.rows.shape[1]), dim=-1)

    def remember(self) -> None:
        """Store the rows collected during the step."""
        self.memory.store()
