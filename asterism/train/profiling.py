"""Where the time of a training step goes: views, transfer, networks, loss, backward pass, optimiser, averages."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import nn

from asterism.data import Views, to_batch, view_loader
from asterism.train.cores import device_type
from asterism.train.kind import Init
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.pretraining import OpenedPretraining
from asterism.train.recipe import Recipe
from asterism.types import Progress

_WARMING_UP = 2  # first steps, which are not timed


@dataclass(frozen=True)
class Profile:
    """Median seconds of every part of a step, in the order in which the parts run."""

    parts: dict[str, float]
    images: int  # of a step

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def __rich__(self) -> Table:
        table = Table("part", "ms", "share", title=f"a step of {self.images} images: {1e3 * self.total:.1f} ms")
        for name, seconds in self.parts.items():
            table.add_row(name, f"{1e3 * seconds:.1f}", f"{seconds / self.total:.1%}")
        return table


def profile(recipe: Recipe, steps: int, init: Init | None = None) -> Profile:
    """Make `steps` steps in this process and time their parts. Views are made here too, not by workers.

    With `data.keep_mb` the images have been read before, as in every epoch but the first.
    """
    device = torch.device(device_type(recipe.trainer))
    opened = OpenedPretraining(recipe, init)
    recipe, method, source = opened.resolved(device, 1), opened.method, opened.source
    assert isinstance(recipe.trainer.batch_size, int)
    size = recipe.trainer.batch_size // recipe.trainer.accumulate
    data = recipe.data.model_copy(update={"workers": 0})
    count = steps + _WARMING_UP
    loader = view_loader(source, Views(method.views), data, batch_size=size, seed=recipe.trainer.seed, steps=count)
    if data.keep_mb:
        for _ in loader:
            pass
    method.to(device).train()
    optimizer, parameters = build_optimizer(method, recipe.optim), list(method.parameters())
    records: list[dict[str, float]] = []
    batches = iter(loader)
    with _timed_parts(method, device) as clock:
        for step in range(count):
            progress = Progress(step, count, max(1, count))
            with clock("views"):
                raw = next(batches)
            with clock("transfer"):
                batch = to_batch(raw, device, data.mean, data.std)
            with clock("loss"):
                total = method.loss(batch, progress).total
            with clock("backward"):
                torch.autograd.backward(total)
            with clock("optimiser"):
                set_schedules(optimizer, recipe.optim, progress, size)
                for parameter in method.frozen(progress):
                    parameter.grad = None
                clip_gradients(parameters, recipe.optim)
                optimizer.step()
                optimizer.zero_grad()
            with clock("averages and memories"):
                method.after_update(progress)
            records.append(clock.take())
    counted = records[_WARMING_UP:]
    names = dict.fromkeys(name for record in counted for name in record)
    return Profile({name: statistics.median(r.get(name, 0.0) for r in counted) for name in names}, size)


class _Clock:
    """Seconds by part. A part inside another counts for itself alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._last = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        self._charge()
        self._seconds[name] += 0.0
        self._open.append(name)

    def leave(self) -> None:
        self._charge()
        self._open.pop()

    def take(self) -> dict[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken

    def _charge(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._last
        self._last = now


@contextmanager
def _timed_parts(method: nn.Module, device: torch.device) -> Iterator[_Clock]:
    """A clock of each network of the method, by hooks that are removed afterwards."""
    clock, hooks = _Clock(device), []
    for name, part in method.named_children():
        inside = [module for path, module in part.named_modules() if ".blocks." not in f".{path}."]
        for module in inside:
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: clock.enter(name.replace("_", " "))))
            hooks.append(module.register_forward_hook(lambda *_: clock.leave(), always_call=True))
    try:
        yield clock
    finally:
        for hook in hooks:
            hook.remove()
