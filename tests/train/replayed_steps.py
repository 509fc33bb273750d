"""Compares steps whose parts overwrite what they returned, as replayed CUDA graphs do, with eager steps.

Run by itself: shape checks at run time, which tests use, cannot be compiled. A backend for the CPU stands in for CUDA
graphs: when a step begins, everything that compiled parts returned before becomes NaN. A method that keeps such a
tensor from one step to the next, in a memory, a centre or a log, would not be finite any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from asterism.methods.base import Method
from asterism.train.building import build_method
from asterism.train.compiling import compile_parts
from asterism.train.cost import noise
from asterism.types import Progress
from tests.train.tiny import tiny_recipe

STEPS = 3


class Replays:
    def __init__(self) -> None:
        self._returned: list[Tensor] = []
        self.overwritten = 0

    def begin(self) -> None:
        for tensor in self._returned:
            tensor.fill_(torch.nan)
        self.overwritten += len(self._returned)
        self._returned.clear()

    def backend(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = aot_autograd(fw_compiler=self._recorded, bw_compiler=self._recorded)(
            graph, inputs
        )
        return compiled

    def _recorded(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            given = {each.untyped_storage().data_ptr() for each in arguments if isinstance(each, Tensor)}
            outputs = graph(*arguments)
            own = [each for each in outputs if isinstance(each, Tensor) and each.is_floating_point()]
            self._returned += [each.detach() for each in own if each.untyped_storage().data_ptr() not in given]
            return outputs

        boxed: Callable[..., Any] = make_boxed_func(run)
        return boxed


def main(names: list[str]) -> None:
    kept_output()
    for name in names:
        torch._dynamo.reset()
        recipe = tiny_recipe(name)
        eager, replayed, replays = build_method(recipe), build_method(recipe), Replays()
        compile_parts(replayed, backend=replays.backend)
        expected = train(eager, lambda: None)
        losses = train(replayed, replays.begin)
        assert replays.overwritten > 0
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(replayed.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
        print("equal:", name)


def kept_output() -> None:
    """The backend does what it is for: an output that is kept becomes NaN, what was computed from it stays."""
    replays, part = Replays(), torch.nn.Linear(3, 3)
    part.compile(backend=replays.backend)
    kept = part(torch.ones(2, 3))
    used = kept.detach() + 1
    replays.begin()
    assert kept.isnan().all()
    assert used.isfinite().all()


def train(method: Method, begin: Callable[[], None]) -> list[Tensor]:
    method.train()
    optimizer = torch.optim.SGD((p for p in method.parameters() if p.requires_grad), lr=0.01)
    totals = []
    for step in range(STEPS):
        progress = Progress(step=step, steps=100, steps_per_epoch=10)
        begin()
        total = method.loss(noise(method.views, 4, torch.device("cpu")), progress).total
        torch.autograd.backward(total)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(progress)
        totals.append(total.detach())
    begin()
    return totals


if __name__ == "__main__":
    main(sys.argv[1:])
