"""What runs on an accelerator gives what it gives on the CPU, and its host never waits (`tests/pretended.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.methods.batches import random_batch
from tests.methods.test_contract import CASES, IMAGES, Trainer, build, progress
from tests.train.tiny import METHODS


@pytest.fixture(scope="module", autouse=True)
def sim() -> Iterator[ModuleType]:
    """Torch learns about the device only where these tests run. Parameters keep their identity when they move."""
    from tests import pretended

    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield pretended
    torch.__future__.set_swap_module_params_on_conversion(before)


def test_it_refuses_what_a_gpu_refuses() -> None:
    there = torch.ones(3, device="sim")
    with pytest.raises(RuntimeError, match="must be on sim"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError):
        there.numpy()
    assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number may come from anywhere


@pytest.mark.parametrize(
    ("waits", "act"),
    [
        (1, lambda x: x.sum().item()),
        (1, lambda x: x.tolist()),
        (1, lambda x: bool((x > 0).all())),
        (1, lambda x: x.nonzero()),
        (1, lambda x: x[x > 1]),
        (1, lambda x: x.unique()),
        (1, lambda x: x.cpu()),
        (1, lambda x: torch.tensor([1.0], device=x.device)),
        (1, lambda x: torch.zeros(3).copy_(x)),
        (0, lambda x: x.to("cpu", non_blocking=True)),
        (0, lambda x: torch.ones(3).to(x.device, non_blocking=True)),
        (0, lambda x: x.masked_fill_(x > 1, 0.0)),
        (0, lambda x: x[torch.arange(2, device=x.device)]),
        (0, lambda x: (x[:2].view(2, 1) * 2).sum()),
    ],
)
def test_it_counts_what_a_host_waits_for(sim, waits, act) -> None:
    x = torch.arange(3.0).to("sim")
    with sim.counted() as count:
        act(x)
    assert count.waits.total() == waits, count.waits


@pytest.mark.parametrize(
    "case", [case if case in METHODS else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_method_is_the_same_there_and_never_waits(sim, case: str) -> None:
    """Losses and buffers of two steps, and gradients of the first. A frozen teacher is moved in the first."""
    here, there = Trainer(case), Trainer(case, move=sim.moved)
    expected = [here.take(0)]
    gradients = dict(here.gradients)
    expected.append(here.take(1))
    for step in range(2):
        batch = there.batch(step)
        with sim.counted() as count:
            found = there.take_part(batch, step)
        assert found.item() == pytest.approx(expected[step], rel=2e-5, abs=2e-5)
        if step == 0:
            assert_close(there.gradients, gradients)
    assert not count.waits, count.waits
    # Lists of neighbours are a cache of the CPU's.
    assert_close(there.buffers(), {name: value for name, value in here.buffers().items() if ".lists." not in name})


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for name, value in expected.items():
        assert found[name].device.type == "sim"
        torch.testing.assert_close(found[name].cpu(), value, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", METHODS)
def test_half_precision_there(sim, case: str) -> None:
    """Autocast of the device, whose lists of operations are CUDA's."""
    method = sim.moved(build(case))
    with torch.autocast("sim", torch.bfloat16), sim.counted() as count:
        losses = method.loss(sim.moved(random_batch(method, IMAGES)), progress(2))
    assert count.launches["_to_copy"] > 0
    expected = build(case).loss(random_batch(method, IMAGES), progress(2))
    assert losses.total.item() == pytest.approx(expected.total.item(), rel=0.05)
    losses.total.backward()
    for name, term in losses.terms.items():
        assert term.dtype == torch.float32, name
