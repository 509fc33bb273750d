"""What runs on an accelerator gives what it gives on the CPU, and its host never waits (`tests/pretended.py`)."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.batches import random_batch
from tests.methods.test_contract import CASES, IMAGES, Trainer, build, progress
from tests.train.tiny import METHODS


@pytest.fixture(scope="module")
def apart() -> Iterator[Callable[..., Any]]:
    """Calls a function of this file where the device exists: torch counts devices once, before the first gradient."""
    start = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, start, importlib.import_module, ("tests.pretended",)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


ACTS: dict[str, tuple[int, Callable[[Tensor], Any]]] = {  # how often the host waits
    "item": (1, lambda x: x.sum().item()),
    "tolist": (1, lambda x: x.tolist()),
    "bool": (1, lambda x: bool((x > 0).all())),
    "nonzero": (1, lambda x: x.nonzero()),
    "mask": (1, lambda x: x[x > 1]),
    "unique": (1, lambda x: x.unique()),
    "to the host": (1, lambda x: x.cpu()),
    "into the host": (1, lambda x: torch.zeros(3).copy_(x)),
    "from the host": (1, lambda x: torch.tensor([1.0], device=x.device)),
    "to the host, later": (0, lambda x: x.to("cpu", non_blocking=True)),
    "from the host, later": (0, lambda x: torch.ones(3).to(x.device, non_blocking=True)),
    "fill": (0, lambda x: x.masked_fill_(x > 1, 0.0)),
    "places": (0, lambda x: x[torch.arange(2, device=x.device)]),
    "arithmetic": (0, lambda x: (x[:2].view(2, 1) * torch.tensor(2.0)).sum()),
}


def _waits(act: str) -> int:
    from tests import pretended

    x = torch.arange(3.0).to("sim")
    with pretended.counted() as count:
        ACTS[act][1](x)
    return count.waits.total()


@pytest.mark.parametrize("act", ACTS)
def test_the_device_counts_waits(apart, act: str) -> None:
    assert apart(_waits, act) == ACTS[act][0]


def _mixes() -> Tensor:
    return torch.ones(3, device="sim") + torch.ones(3)


def _reads_memory() -> Any:
    return torch.ones(3, device="sim").numpy()


def test_the_device_refuses_what_a_gpu_refuses(apart) -> None:
    with pytest.raises(RuntimeError, match="must be on sim"):
        apart(_mixes)
    with pytest.raises(RuntimeError, match="numpy"):
        apart(_reads_memory)


def _is_the_same(case: str) -> None:
    from tests import pretended

    here, there = Trainer(case), Trainer(case, move=pretended.moved)
    expected = [here.take(0)]
    gradients = dict(here.gradients)
    expected.append(here.take(1))
    for step in range(2):
        batch = there.batch(step)
        with pretended.counted() as count:
            found = there.take_part(batch, step)
        assert found.item() == pytest.approx(expected[step], rel=2e-5, abs=2e-5), f"step {step}"
        if step == 0:
            _assert_close(there.gradients, gradients)
    assert not count.waits, str(count.waits)
    _assert_close(there.buffers(), here.buffers())


def _assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for name, value in expected.items():
        assert found[name].device.type == "sim", name
        torch.testing.assert_close(found[name].cpu(), value, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "case", [case if case in METHODS else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_method_is_the_same_there_and_never_waits(apart, case: str) -> None:
    """Losses and buffers of two steps, and gradients of the first, in which a frozen teacher is moved."""
    apart(_is_the_same, case)


def _in_half_precision(case: str) -> None:
    from tests import pretended

    method = pretended.moved(build(case))
    with torch.autocast("sim", torch.bfloat16), pretended.counted() as count:
        losses = method.loss(pretended.moved(random_batch(method, IMAGES)), progress(2))
    losses.total.backward()
    expected = build(case).loss(random_batch(method, IMAGES), progress(2))
    assert count.launches["_to_copy"] > 0, "nothing was cast"
    assert losses.total.item() == pytest.approx(expected.total.item(), rel=0.05)
    assert all(term.dtype == torch.float32 for term in losses.terms.values())


@pytest.mark.parametrize(
    "case", [case if case == "sop" else pytest.param(case, marks=pytest.mark.slow) for case in METHODS]
)
def test_half_precision_there(apart, case: str) -> None:
    """Autocast of the device, whose lists of operations are CUDA's."""
    apart(_in_half_precision, case)
