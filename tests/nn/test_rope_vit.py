from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone, rebuild_backbone
from asterism.types import Tokens

NAMES = [
    "vit_small_patch16_dinov3",
    "vit_small_plus_patch16_dinov3_qkvb",
    "vit_small_patch16_rope_mixed_224",
    "vit_base_patch16_rope_reg1_gap_256",
    "eva02_tiny_patch14_224",
]


def tiny(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    side = 14 if "14" in name else 16
    sizes: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 2, "image_size": 4 * side}
    backbone = build_backbone(BackboneConfig(name=name, **(sizes | changes)))
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return backbone.eval()


def pictures(backbone: Any, rows: int = 4, columns: int = 4) -> Tensor:
    side = backbone.patch_size
    return torch.randn(2, 3, rows * side, columns * side, generator=torch.Generator().manual_seed(1))


def joined(tokens: Tokens) -> Tensor:
    parts = [] if tokens.cls is None else [tokens.cls[:, None]]
    return torch.cat([*parts, tokens.registers, tokens.patches], dim=1)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_output_equals_timms(name: str) -> None:
    backbone = tiny(name)
    for rows, columns in ((4, 4), (2, 5)):
        pixels = pictures(backbone, rows, columns)
        tokens = backbone(pixels)
        assert tokens.grid == (rows, columns)
        torch.testing.assert_close(joined(tokens), backbone.network.forward_features(pixels), atol=1e-5, rtol=1e-5)
        last = backbone.layers(pixels, [-1])[0]
        assert torch.equal(joined(last), joined(tokens))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_kept_patches_keep_their_positions(name: str) -> None:
    backbone = tiny(name)
    pixels = pictures(backbone)
    order = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    whole, kept = backbone(pixels), backbone(pixels, keep=order)
    expected = torch.stack([patches[rows] for patches, rows in zip(whole.patches, order, strict=True)])
    torch.testing.assert_close(kept.patches, expected, atol=1e-5, rtol=1e-5)
    assert backbone(pixels, keep=order[:, :5]).patches.shape[1] == 5


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_attention_weights_reproduce_the_block(name: str) -> None:
    """The weights times the values, projected, are what the block's attention returns."""
    backbone = tiny(name)
    seen: list[tuple[Tensor, Tensor]] = []
    attention = backbone.network.blocks[-1].attn
    attention.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    weights = backbone.attention(pictures(backbone))
    inputs, output = seen[0]
    if attention.qkv is None:
        value = attention.v_proj(inputs)
    else:
        value = attention.qkv(inputs).chunk(3, dim=-1)[2] + (
            0 if getattr(attention, "v_bias", None) is None else attention.v_bias
        )
    value = value.unflatten(2, (2, -1)).transpose(1, 2)
    mixed = (weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.proj(attention.norm(mixed)), output, atol=1e-5, rtol=1e-5)


def test_training_options() -> None:
    backbone = tiny("vit_small_patch16_dinov3", mask_token=True, registers=3, drop_path=0.5, checkpointing=True).train()
    pixels, mask = pictures(backbone), torch.zeros(2, 16, dtype=torch.bool)
    mask[:, :4] = True
    tokens = backbone(pixels, mask=mask, drop_keys=torch.tensor([1, 2]))
    assert tokens.registers.shape[1] == 3
    tokens.patches.sum().backward()
    assert backbone.mask_token.grad is not None
    again = rebuild_backbone(backbone.architecture)
    assert [p.shape for p in again.network.parameters()] == [p.shape for p in backbone.network.parameters()]
    with pytest.raises(UserError, match="has rotary positions"):
        tiny("vit_small_patch16_dinov3", positions="sincos")
