"""The estimate on fake tensors equals what autograd keeps when a step is really made."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from asterism.train.building import build_method
from asterism.train.cost import noise
from asterism.train.memory_estimate import estimate_memory
from asterism.train.optim import build_optimizer
from asterism.train.recipe import Recipe
from asterism.types import Progress
from tests.train.tiny import tiny_recipe


def measured_peak(recipe: Recipe, images: int) -> int:
    """Peak bytes of torch in the last step, with weights, buffers and moments."""
    method = build_method(recipe).train()
    optimizer = build_optimizer(method, recipe.optim)
    batch = noise(method.views, images, torch.device("cpu"))

    def step() -> None:
        torch.autograd.backward(method.loss(batch, Progress(step=500, steps=1000, steps_per_epoch=10)).total)
        optimizer.step()
        optimizer.zero_grad()

    step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    now = peak = sum(t.numel() * t.element_size() for t in (*method.parameters(), *method.buffers(), *moments))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(("name", "images"), [("dino", 16), ("mae", 2), ("mae", 32), ("flsl", 16)])
def test_the_estimate_is_near_the_measured_peak(name: str, images: int) -> None:
    """Also where gradients are larger than what autograd keeps."""
    recipe = tiny_recipe(name, backbone={"depth": 6, "dim": 64})
    memory = estimate_memory(recipe, images)
    assert memory is not None
    assert memory.peak == pytest.approx(measured_peak(recipe, images), rel=0.15)
    assert memory.kept_checkpointed < 0.8 * memory.kept
