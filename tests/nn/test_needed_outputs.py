"""A last block that computes only needed tokens gives the same tokens and gradients as the whole block."""

from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.nn.backbone import BackboneConfig, build_backbone, encode_views

SMALL: dict[str, Any] = {
    "name": "vit_tiny_patch16_224",
    "image_size": 16,
    "patch_size": 4,
    "dim": 32,
    "depth": 2,
    "heads": 2,
}


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**SMALL | changes)).train()


def gradients(backbone: Any, value: Tensor) -> list[Tensor]:
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    backbone.zero_grad()
    (value * weights).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in backbone.parameters()]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("registers", [0, 3, 20])  # 20: so many queries that keys and values are computed
@pytest.mark.parametrize("drop_path", [0.0, 0.6])
def test_class_token_and_gradients(registers: int, drop_path: float, checkpointing: bool) -> None:
    backbone = make(registers=registers, drop_path=drop_path, checkpointing=checkpointing)
    pixels, keys = torch.randn(5, 3, 16, 16), torch.arange(5)
    whole = backbone(pixels, drop_keys=keys)
    expected = gradients(backbone, torch.cat([whole.cls[:, None], whole.registers], dim=1))
    part = backbone(pixels, drop_keys=keys, needed="none")
    assert part.patches.shape == (5, 0, 32)
    torch.testing.assert_close(part.cls, whole.cls)
    torch.testing.assert_close(part.registers, whole.registers)
    found = gradients(backbone, torch.cat([part.cls[:, None], part.registers], dim=1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drop_path", [0.0, 0.6])
def test_some_patches(drop_path: float) -> None:
    backbone = make(mask_token=True, registers=1, drop_path=drop_path)
    pixels, keys = torch.randn(4, 3, 16, 16), torch.arange(4)
    needed = torch.rand(4, 16, generator=torch.Generator().manual_seed(2)) < 0.3
    needed[1] = False
    whole = backbone(pixels, mask=needed, drop_keys=keys)
    expected = gradients(backbone, torch.cat([whole.cls, whole.patches[needed]]))
    part = backbone(pixels, mask=needed, drop_keys=keys, needed=needed)
    torch.testing.assert_close(part.cls, whole.cls)
    torch.testing.assert_close(part.registers, whole.registers)
    torch.testing.assert_close(part.patches[needed], whole.patches[needed])
    assert part.patches[~needed].abs().max() == 0
    found = gradients(backbone, torch.cat([part.cls, part.patches[needed]]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_layer_scale_and_normed_queries() -> None:
    backbone = make(arguments={"init_values": 0.3, "qk_norm": True})
    pixels = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(backbone(pixels, needed="none").cls, backbone(pixels).cls)


def test_views_with_different_needs() -> None:
    backbone = make(mask_token=True)
    views = [torch.randn(3, 3, side, side) for side in (16, 16, 8)]
    masks = [torch.rand(3, 16) < 0.4 for _ in range(2)]
    whole = encode_views(backbone, views, masks=[*masks, None])
    part = encode_views(backbone, views, masks=[*masks, None], needed=[*masks, "none"])
    for a, b, mask in zip(part, whole, masks, strict=False):
        torch.testing.assert_close(a.cls, b.cls)
        torch.testing.assert_close(a.patches[mask], b.patches[mask])
    torch.testing.assert_close(part[2].cls, whole[2].cls)


def test_without_class_token_all_patches_are_computed() -> None:
    backbone = make(class_token=False)
    pixels = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(backbone(pixels, needed="none").patches, backbone(pixels).patches)
