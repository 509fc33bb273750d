from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.backbone import Backbone, BackboneConfig, build_backbone
from asterism.nn.batch_norm import SyncedBatchNorm2d
from asterism.nn.pyramid import TokenPyramid, build_pyramid
from asterism.types import Tokens
from tests import distributed

VIT: dict[str, Any] = {"name": "vit_tiny_patch16_224", "image_size": 32, "dim": 8, "heads": 2}


def vit(**changes: Any) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**(VIT | {"depth": 3} | changes)))


def outputs(backbone: Backbone, height: int, width: int) -> list[Tokens]:
    return backbone.block_outputs(torch.randn(2, 3, height, width), backbone.level_blocks)


@pytest.mark.parametrize(
    ("depth", "blocks"), [(12, (3, 5, 7, 11)), (24, (7, 11, 15, 23)), (4, (0, 1, 2, 3)), (1, (0,) * 4)]
)
def test_blocks_are_those_of_the_papers_in_proportion(depth: int, blocks: tuple[int, ...]) -> None:
    assert vit(depth=depth).level_blocks == blocks


def test_block_outputs_are_timms_without_the_norm() -> None:
    backbone = vit()
    pixels = torch.randn(2, 3, 32, 48)
    expected = backbone.network.get_intermediate_layers(pixels, [0, 2], norm=False)
    for ours, theirs in zip(backbone.block_outputs(pixels, [0, -1]), expected, strict=True):
        torch.testing.assert_close(ours.patches, theirs)


def test_block_outputs_drop_the_paths_of_the_forward_pass() -> None:
    backbone = vit(drop_path=0.5)
    pixels, keys = torch.randn(4, 3, 32, 32), torch.arange(4)
    (last,) = backbone.block_outputs(pixels, [-1], drop_keys=keys)
    torch.testing.assert_close(backbone.network.norm(last.patches), backbone(pixels, drop_keys=keys).patches)
    assert not torch.allclose(last.patches, backbone.block_outputs(pixels, [-1])[0].patches)


@pytest.mark.parametrize("patch", [16, 8])
def test_a_vit_has_four_resolutions(patch: int) -> None:
    backbone = vit(patch_size=patch)
    pyramid = build_pyramid(backbone)
    maps = pyramid(outputs(backbone, 64, 96))
    assert [tuple(each.shape) for each in maps] == [(2, 8, 16, 24), (2, 8, 8, 12), (2, 8, 4, 6), (2, 8, 2, 3)]
    assert (pyramid.strides, pyramid.widths) == ((4, 8, 16, 32), (8, 8, 8, 8))


def test_maps_are_those_of_the_slow_form() -> None:
    torch.manual_seed(1)
    pyramid = TokenPyramid(4, 16)
    tokens = [Tokens(None, torch.randn(2, 6, 4), torch.empty(2, 0, 4), (2, 3)) for _ in range(4)]
    finest, fine, plain, coarse = pyramid([*tokens])
    grids = [each.patches.view(2, 2, 3, 4).permute(0, 3, 1, 2) for each in tokens]
    first, norm, _, second = pyramid.levels[0]
    doubled = _doubled(grids[0], first)
    mean, variance = doubled.mean((0, 2, 3), keepdim=True), doubled.var((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(finest, _doubled(F.gelu((doubled - mean) / (variance + norm.eps).sqrt()), second))
    torch.testing.assert_close(fine, _doubled(grids[1], pyramid.levels[1][0]))
    torch.testing.assert_close(plain, grids[2])
    torch.testing.assert_close(coarse[:, :, 0, 0], grids[3][:, :, :2, :2].amax((2, 3)))
    assert coarse.shape == (2, 4, 1, 2)  # the odd column is kept


def _doubled(x: Tensor, convolution: Any) -> Tensor:
    """Every cell becomes 2 × 2 cells, each a linear map of it."""
    b, _, rows, columns = x.shape
    result = torch.empty(b, convolution.out_channels, 2 * rows, 2 * columns)
    for down in range(2):
        for right in range(2):
            mapped = torch.einsum("bihw,io->bohw", x, convolution.weight[:, :, down, right])
            result[:, :, down::2, right::2] = mapped + convolution.bias[:, None, None]
    return result


def test_a_swin_has_its_own_levels() -> None:
    torch.manual_seed(0)
    swin = build_backbone(
        BackboneConfig(name="swin_tiny_patch4_window7_224", dim=64, patch_size=16, image_size=64, window=4)
    )
    pyramid = build_pyramid(swin)
    maps = pyramid(outputs(swin, 64, 64))
    assert swin.level_blocks == (1, 3, 9, 11)
    assert [tuple(each.shape[1:]) for each in maps] == [(8, 32, 32), (16, 16, 16), (32, 8, 8), (64, 4, 4)]
    assert (pyramid.strides, pyramid.widths) == ((2, 4, 8, 16), (8, 16, 32, 64))
    torch.testing.assert_close(maps[0].mean(1), torch.zeros(2, 32, 32), atol=1e-5, rtol=0)


def normalised(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Output and gradients of a synced batch norm for this process's images."""
    torch.manual_seed(0)
    norm: nn.BatchNorm2d = SyncedBatchNorm2d(x.shape[1])
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else None
    own = (x if rank is None else x.chunk(2)[rank]).clone().requires_grad_()
    result = norm(own)
    wanted = weight if rank is None else weight.chunk(2)[rank]
    (result * wanted).sum().backward()
    assert own.grad is not None
    assert norm.running_var is not None
    return {"out": result.detach(), "gradient": own.grad, "variance": norm.running_var}


def test_batch_norm_of_two_processes_is_that_of_one() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 3, 5, 6) * 3 + 7, torch.randn(4, 3, 5, 6)
    whole = normalised(x, weight)
    parts = distributed.run(normalised, x, weight)
    torch.testing.assert_close(torch.cat([part["out"] for part in parts]), whole["out"], atol=1e-5, rtol=1e-5)
    gradient = torch.cat([part["gradient"] for part in parts])
    torch.testing.assert_close(gradient, whole["gradient"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(parts[0]["variance"], whole["variance"])
