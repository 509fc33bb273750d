from typing import Any

import torch
from torch import Tensor, nn

from asterism.nn.backbone import BackboneConfig, build_backbone, encode_views


def tiny(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**({"dim": 64, "depth": 2, "image_size": 64} | changes)))


def counted(backbone: nn.Module) -> list[int]:
    """A list to which each forward pass appends its batch size."""
    passes: list[int] = []
    backbone.register_forward_pre_hook(lambda _, arguments: passes.append(len(arguments[0])))
    return passes


def views(*sizes: int, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, 3, size, size, generator=generator) for size in sizes]


@torch.no_grad()
def test_views_of_one_resolution_share_a_forward_pass() -> None:
    backbone = tiny(registers=1)
    crops = views(64, 32, 64, 48, 32)
    expected = [backbone(crop) for crop in crops]
    passes = counted(backbone)
    results = encode_views(backbone, crops)
    assert sorted(passes) == [2, 4, 4]
    for result, alone in zip(results, expected, strict=True):
        assert result.grid == alone.grid
        assert result.cls is not None
        assert alone.cls is not None
        torch.testing.assert_close(result.cls, alone.cls, atol=2e-6, rtol=0)
        torch.testing.assert_close(result.patches, alone.patches, atol=2e-6, rtol=0)
        torch.testing.assert_close(result.registers, alone.registers, atol=2e-6, rtol=0)


@torch.no_grad()
def test_each_view_has_its_own_mask_and_keys() -> None:
    backbone = tiny(mask_token=True, drop_path=0.6, class_token=False)
    backbone.mask_token.normal_()
    crops = views(64, 64, 32)
    mask = torch.rand(2, 16) < 0.5
    keys = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6])]
    expected = [
        backbone(crops[0], drop_keys=keys[0]),
        backbone(crops[1], mask=mask, drop_keys=keys[1]),
        backbone(crops[2], drop_keys=keys[2]),
    ]
    passes = counted(backbone)
    results = encode_views(backbone, crops, masks=[None, mask, None], drop_keys=keys)
    assert sorted(passes) == [2, 4]
    for result, alone in zip(results, expected, strict=True):
        assert result.cls is None
        torch.testing.assert_close(result.patches, alone.patches, atol=2e-6, rtol=0)


@torch.no_grad()
def test_views_that_keep_the_same_number_of_patches_share_a_forward_pass() -> None:
    backbone = tiny()
    crops = views(64, 64, 64, 64)
    keep = [torch.tensor([[1, 2], [3, 4]]), None, torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9], [10]])]
    expected = [backbone(crop, keep=kept) for crop, kept in zip(crops, keep, strict=True)]
    passes = counted(backbone)
    results = encode_views(backbone, crops, keep=keep)
    assert sorted(passes) == [2, 2, 4]
    for result, alone in zip(results, expected, strict=True):
        torch.testing.assert_close(result.patches, alone.patches, atol=2e-6, rtol=0)
