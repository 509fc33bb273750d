"""The estimate on fake tensors equals what autograd keeps when a step is really made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from asterism.train.building import build_method
from asterism.train.cost import noise
from asterism.train.memory import estimate_memory
from asterism.train.recipe import Recipe
from asterism.types import Progress
from tests.train.tiny import tiny_recipe


def really_kept(recipe: Recipe, images: int) -> int:
    method, storages = build_method(recipe).train(), {}
    state = {t.untyped_storage().data_ptr() for t in (*method.parameters(), *method.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in state and not isinstance(tensor, nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    batch = noise(method.views, images, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        method.loss(batch, Progress(step=0, steps=1000, steps_per_epoch=10))
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("name", ["dino", "mae"])
def test_the_estimate_is_what_is_kept(name: str) -> None:
    recipe = tiny_recipe(name, backbone={"depth": 6})
    memory = estimate_memory(recipe, 16)
    assert memory is not None
    assert memory.kept == pytest.approx(really_kept(recipe, 16), rel=0.02)
    assert memory.kept_checkpointed < 0.8 * memory.kept
    weights = sum(p.numel() * 4 for p in build_method(recipe).parameters() if p.requires_grad)
    assert memory.fixed >= 4 * weights
