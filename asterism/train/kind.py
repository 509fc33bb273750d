"""A kind of run as data: what pretraining, fine-tuning and alignment give the engine that starts and resumes them.

    opened = kind.open(recipe, init, run)             # data and network, once in each process
    recipe = opened.resolved(device, processes)       # without "auto" settings
    job = opened.job(recipe, run, fabric)             # what the loop trains

Other packages add kinds as entry points of the group `asterism.runs`, see `asterism.plugins`.
"""

from __future__ import annotations

import contextlib
import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning_fabric import Fabric

from asterism.data import Source
from asterism.errors import UserError, unknown
from asterism.plugins import plugins
from asterism.train.job import Job
from asterism.train.recipe import RunRecipe
from asterism.train.run import Run, is_finetuned, is_pretrained

R = TypeVar("R", bound=RunRecipe)
F = TypeVar("F", bound=Run)

_OWN = {"pretrain": "asterism.train.pretraining:PRETRAINING", "finetune": "asterism.finetuning.opening:FINETUNING"}


@dataclass(frozen=True)
class Init:
    """Weights that a run starts from."""

    source: str
    options: Mapping[str, Any] = field(default_factory=dict)  # what their file does not say: see WeightsOptions


class Opened(ABC, Generic[R, F]):
    """The data and the network of a recipe. Opening them finds every mistake in them, before anything is written."""

    recipe: R  # with what it takes from the weights that it starts from
    source: Source  # all images of the run, which a resumed run must find again

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many parameters are trained."""

    @abstractmethod
    def resolved(self, device: torch.device, processes: int) -> R:
        """The recipe with every "auto" replaced; raises if batch size, devices and data do not fit together."""

    @abstractmethod
    def job(self, recipe: R, run: F, fabric: Fabric) -> Job[Any]:
        """What the loop trains. All processes call this."""

    def started_from(self) -> list[str]:
        """Lines that a new run prints about the weights that it starts from."""
        return []


@dataclass(frozen=True)
class Kind(Generic[R, F]):
    """One kind of run."""

    name: str  # also the command that starts and resumes it
    recipe: type[R]
    run: type[F]  # its folder
    open_run: Callable[[Path], F]  # raises if the folder is not a run of this kind
    open: Callable[[R, Init | None, F | None], Opened[R, F]]  # with the run that is resumed, if it is
    page: Callable[[F], str] | None = None  # its report, if the core has none


@dataclass(frozen=True)
class Request(Generic[R, F]):
    """The run that all processes start or resume."""

    kind: Kind[R, F]
    recipe: R
    out: Path
    init: Init | None = None
    overwrite: bool = False
    resume: bool = False
    began: float = field(default_factory=time.monotonic)  # in the first process; other processes have no clock

    def open(self) -> Opened[R, F]:
        return self.kind.open(self.recipe, self.init, self.kind.run(self.out) if self.resume else None)

    def as_json(self) -> dict[str, Any]:
        """For a process that is started."""
        return {
            "kind": self.kind.name,
            "recipe": self.recipe.model_dump(mode="json"),
            "out": str(self.out),
            "init": None if self.init is None else asdict(self.init),
            "overwrite": self.overwrite,
            "resume": self.resume,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Request[Any, Any]:
        kind = kind_named(values["kind"])
        init = None if values["init"] is None else Init(**values["init"])
        recipe, out = kind.recipe.parse(values["recipe"]), Path(values["out"])
        return Request(kind, recipe, out, init, values["overwrite"], values["resume"])


def kind_named(name: str) -> Kind[Any, Any]:
    """The kind of run that this command starts."""
    if name in _OWN:
        found: Kind[Any, Any] = pkgutil.resolve_name(_OWN[name])
        return found
    if name not in plugins("runs"):
        raise unknown("kind of run", name, [*_OWN, *plugins("runs")])
    added: Kind[Any, Any] = plugins("runs")[name].load()
    return added


def kind_of(run: Path) -> Kind[Any, Any]:
    """The kind of the run in this folder."""
    if is_pretrained(run) or is_finetuned(run):
        return kind_named("pretrain" if is_pretrained(run) else "finetune")
    for kind in map(kind_named, plugins("runs")):
        with contextlib.suppress(UserError):
            kind.open_run(run)
            return kind
    raise UserError(f"{run} is a run of another package's command, which is not installed")
