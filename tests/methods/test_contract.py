"""The contract of every method with the training loop, tested with tiny settings."""

import copy
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from asterism.methods import method_names
from asterism.methods.base import Method
from asterism.ops import collectives
from asterism.train.building import build_method
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.types import Batch, Losses, Progress
from tests.distributed import run
from tests.methods.batches import random_batch, rows
from tests.train.tiny import METHODS, tiny_recipe

T = TypeVar("T")

_FEW = {"memory": 32, "count": 8}

# Settings that give a method different state from its tiny recipe: name of the case → method, changes
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ibot, own prototypes": ("ibot", {"patch_out_dim": 24}),
    "ibot, teacher without them": ("ibot", {"patch_out_dim": 32, "teacher_prototypes": "image"}),
    "ibot, late masks": ("ibot", {"mask": {"start_epoch": 1}}),
    "sop, half of the anchors": ("sop", {"images": _FEW | {"kept": 0.5, "neighbours": 2, "tasks": 2}}),
    "sop, whole memory": ("sop", {"images": _FEW | {"neighbours": 2, "search": "whole-memory"}}),
    "massl": ("sop", {"images": _FEW | {"neighbours": 0, "anchors": "partition"}, "patches": None}),
    "cribo, neighbours at once": ("cribo", {"neighbour_start": 0}),
    "flsl, balanced targets": ("flsl", {"targets": "sinkhorn", "projected_epochs": 1, "local_views": 2}),
    "distill, without own target": (
        "distill",
        {
            "cls": {"distance": "mse", "scale": "standardised", "weight": 0.5},
            "patches": None,
            "queue": {"size": 12, "own_target": False, "teacher_temp": 0.04, "student_temp": 0.04},
        },
    ),
    "distill, patches": ("distill", {"cls": None, "patches": {"distance": "mse"}, "queue": None, "head_layers": 2}),
    "stellar, no warm-up": ("stellar", {"warmup": None}),
}
CASES = {name: (name, {}) for name in method_names()} | VARIANTS

IMAGES, STEPS = 8, 4


def build(case: str, seed: int = 0) -> Method:
    name, changes = CASES[case]
    return build_method(tiny_recipe(name, method={"name": name, **METHODS[name], **changes}, trainer={"seed": seed}))


def progress(step: int) -> Progress:
    return Progress(step, STEPS, steps_per_epoch=2, seed=3)  # STELLAR's warm-up ends after half of the steps


class Trainer:
    """The training loop's order of calls, for one method and noise images."""

    def __init__(self, case: str, seed: int = 0, move: Callable[[T], T] = lambda value: value) -> None:
        self.move, self.method = move, move(build(case, seed))
        self.optim = tiny_recipe().optim
        self.optimizer = build_optimizer(self.method, self.optim)
        self.gradients: dict[str, Tensor] = {}  # of the last step, before clipping

    def take(self, step: int, micro_batches: int = 1) -> float:
        """Take one step on this process's share of the batch; returns the loss over all processes and micro-batches."""
        return float(collectives.all_reduce_sum(self.take_part(self.batch(step), step, micro_batches)))

    def batch(self, step: int) -> Batch:
        return self.move(random_batch(self.method, IMAGES, seed=step))

    def take_part(self, batch: Batch, step: int, micro_batches: int = 1) -> Tensor:
        """This process's part of the loss, as nobody has read it yet."""
        now = progress(step)
        parts = collectives.world_size() * micro_batches
        first = collectives.rank() * micro_batches
        losses = [self.method.loss(part_of(batch, first + i, parts), now).total for i in range(micro_batches)]
        total = torch.stack(losses).sum() / parts
        total.backward()
        for name, parameter in self.method.named_parameters():
            if parameter.grad is not None:
                parameter.grad = collectives.all_reduce_sum(parameter.grad)
                self.gradients[name] = parameter.grad.clone()
        set_schedules(self.optimizer, self.optim, now, IMAGES)
        for parameter in self.method.frozen(now):
            parameter.grad = None
        clip_gradients(self.method.parameters(), self.optim)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.method.after_update(now)
        return total.detach()

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.method.named_buffers())


def part_of(batch: Batch, number: int, parts: int) -> Batch:
    size = len(batch.keys) // parts
    return rows(batch, slice(number * size, (number + 1) * size))


def three_steps(cases: list[str], micro_batches: int = 1) -> dict[str, tuple[list[float], dict[str, Tensor]]]:
    """Losses of three steps, gradients of the first, and buffers after the last."""
    results = {}
    for case in cases:
        trainer = Trainer(case)
        losses = [trainer.take(0, micro_batches)]
        tensors = {f"gradient of {name}": gradient for name, gradient in trainer.gradients.items()}
        losses += [trainer.take(step, micro_batches) for step in (1, 2)]
        results[case] = (losses, tensors | trainer.buffers())
    return results


def assert_same(
    ours: dict[str, tuple[list[float], dict[str, Tensor]]], expected: dict[str, tuple[list[float], dict[str, Tensor]]]
) -> None:
    for case, (losses, tensors) in expected.items():
        assert ours[case][0] == pytest.approx(losses, rel=1e-5, abs=1e-5), case
        for name, tensor in tensors.items():
            torch.testing.assert_close(
                ours[case][1][name], tensor, rtol=1e-3, atol=1e-5, msg=lambda text, c=case, n=name: f"{c}, {n}: {text}"
            )


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[float], dict[str, Tensor]]]:
    return three_steps(list(CASES))


def test_every_method_has_a_tiny_recipe() -> None:
    assert set(METHODS) == set(method_names())


def test_two_processes_are_one(alone: dict[str, tuple[list[float], dict[str, Tensor]]]) -> None:
    """Losses, gradients, centres, memories and banks do not depend on how many processes share a batch."""
    for together in run(three_steps, list(CASES)):
        assert_same(together, alone)


def test_micro_batches_are_one_batch(alone: dict[str, tuple[list[float], dict[str, Tensor]]]) -> None:
    cases = [case for case in CASES if build(case).config.needs_whole_batch is None]
    assert {CASES[case][0] for case in CASES if case not in cases} == {"cribo", "flsl", "stellar"}
    assert_same(three_steps(cases, micro_batches=2), {case: alone[case] for case in cases})


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_method_is_bit_identical(case: str) -> None:
    """The state dictionary is complete: loaded into a method of another seed, it gives the same result."""
    whole, resumed = Trainer(case), Trainer(case, seed=1)
    for step in range(STEPS):
        if step == STEPS // 2:
            resumed.method.load_state_dict(whole.method.state_dict())
            resumed.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
        loss = whole.take(step)
        if step >= STEPS // 2:
            assert resumed.take(step) == loss
    for (name, expected), ours in zip(
        whole.method.state_dict().items(), resumed.method.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, expected), name


@pytest.mark.parametrize("case", CASES)
def test_trained_parameters_have_gradients_and_others_none(case: str) -> None:
    """Processes wait for the gradient of every trainable parameter in every step."""
    method = build(case)
    moved: set[str] = set()
    for step in (0, 2, 3):
        method.loss(random_batch(method, IMAGES, seed=step), progress(step)).total.backward()
        for name, parameter in method.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, f"{name} in step {step}"
            if parameter.grad is not None and parameter.grad.abs().sum() > 0:
                moved.add(name)
        method.zero_grad()
        method.after_update(progress(step))
    idle = {name for name, parameter in method.named_parameters() if parameter.requires_grad} - moved
    assert not idle


@pytest.mark.parametrize("case", CASES)
def test_randomness_comes_from_keys_alone(case: str) -> None:
    method = build(case)
    batch, totals = random_batch(method, IMAGES), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        totals.append(method.loss(batch, progress(0)).total)
        assert torch.equal(torch.get_rng_state(), before), "the loss draws from the global generator"
    assert totals[0] == totals[1]


@pytest.mark.parametrize("case", CASES)
def test_losses_are_full_precision_scalars_and_metrics_are_detached(case: str) -> None:
    method = build(case)
    with torch.autocast("cpu", torch.bfloat16):
        low = method.loss(random_batch(method, IMAGES), progress(2))
    full = build(case).loss(random_batch(method, IMAGES), progress(2))
    assert all(term.dtype == torch.float32 and term.shape == () for term in low.terms.values())
    torch.testing.assert_close(low.total, full.total, rtol=0.05, atol=0)
    assert_reported(full)


def assert_reported(losses: Losses) -> None:
    assert not any(value.requires_grad for value in losses.metrics.values())
    assert losses.embeddings is not None
    assert len(losses.embeddings) == IMAGES
    assert not losses.embeddings.requires_grad


@pytest.mark.parametrize("name", method_names())
def test_loaded_weights_reach_the_encoder(name: str) -> None:
    method = build(name)
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter.add_(1)
    method.backbone_was_loaded()
    pairs = zip(method.backbone.parameters(), method.encoder().backbone.parameters(), strict=True)
    assert all(torch.equal(ours, used) for ours, used in pairs)
