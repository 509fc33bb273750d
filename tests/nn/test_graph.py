"""The recordable form of an encoder computes what the encoder computes, at every size."""

from collections.abc import Callable
from functools import partial

import jaxtyping
import pytest
import torch
from torch import Tensor

from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph, _RecordablePool, recording
from tests.concept_samples import concept_encoder
from tests.export_samples import small_swin, small_vit, timm_vit

SHAPES = [(1, 3, 16, 16), (3, 3, 24, 40), (2, 3, 8, 12), (1, 3, 4, 4), (2, 3, 16, 20)]


def outputs(encoder: Encoder, images: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return encoder.named_outputs(encoder.normalise(images))


@pytest.mark.parametrize(
    "make",
    [
        partial(small_vit),
        partial(small_vit, resampling="plain"),
        partial(small_vit, resampling="offset"),
        partial(small_vit, class_token=False, positions="sincos"),
        partial(small_vit, registers=2, class_position=True),
        partial(small_vit, class_token=False, registers=2),
        partial(timm_vit, "vit_small_patch16_dinov3"),
    ],
    ids=lambda make: str({**make.keywords, "name": make.args}),
)
def test_vit_at_any_size(make: Callable[[], Encoder]) -> None:
    encoder = make()
    graph = Graph(encoder)
    assert graph.any_size
    for shape in SHAPES:
        images = torch.rand(shape)
        torch.testing.assert_close(graph(images), outputs(encoder, images), atol=1e-5, rtol=0)


def test_concepts_and_their_maps() -> None:
    encoder = concept_encoder()
    images = torch.rand(2, 3, 12, 20)
    made = Graph(encoder)(images)
    assert list(made) == ["cls", "patches", "sparse", "where"]
    assert made["where"].shape == (2, 3, 3, 5)
    torch.testing.assert_close(made, outputs(encoder, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("encoder", "side", "other"),
    [
        (small_swin(), 32, (1, 3, 64, 16)),  # as many pixels, and as many windows
        (timm_vit("eva02_tiny_patch14_224"), 16, (1, 3, 32, 8)),
    ],
    ids=["swin", "other rotary positions"],
)
def test_networks_of_one_size(encoder: Encoder, side: int, other: tuple[int, ...]) -> None:
    graph = Graph(encoder)
    assert not graph.any_size
    images = torch.rand(3, 3, side, side)
    torch.testing.assert_close(graph(images), outputs(encoder, images), atol=1e-5, rtol=0)
    with pytest.raises(RuntimeError, match="must match"):
        graph(torch.rand(other))


@pytest.mark.parametrize("pooling", ["map", "avg"])
def test_pooling_with_weights_of_its_own(pooling: str) -> None:
    encoder = timm_vit("vit_base_patch16_224", global_pool=pooling)
    images = torch.rand(2, 3, 24, 16)
    torch.testing.assert_close(Graph(encoder)(images), outputs(encoder, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("cells", [1, 2, 3, 6])
def test_pooling_to_a_fixed_grid(cells: int) -> None:
    pool = torch.nn.AdaptiveAvgPool2d(cells)
    for height, width in ((1, 1), (2, 5), (7, 6), (13, 12)):
        maps = torch.rand(2, 3, height, width)
        torch.testing.assert_close(_RecordablePool(pool)(maps), pool(maps), atol=1e-6, rtol=0)


def test_shape_checks_return_after_recording() -> None:
    def fail() -> None:
        with recording():
            assert jaxtyping.config.jaxtyping_disable
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert not jaxtyping.config.jaxtyping_disable
