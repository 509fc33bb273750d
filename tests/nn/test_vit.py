from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.backbone import Backbone, BackboneConfig, build_backbone
from asterism.nn.positions import sincos_table
from asterism.types import Tokens

SMALL: dict[str, Any] = {"dim": 64, "depth": 3, "heads": 4}
KINDS: dict[str, dict[str, Any]] = {
    "class token": {"name": "vit_small_patch16_224", "image_size": 64},
    "no class token": {"name": "vit_small_patch16_224", "image_size": 64, "class_token": False},
    "registers": {"name": "vit_small_patch16_224", "image_size": 64, "registers": 3},
    "registers and a position of the class token": {
        "name": "vit_small_patch16_224",
        "image_size": 64,
        "registers": 3,
        "class_position": True,
    },
    "patch positions only": {"name": "vit_small_patch16_224", "image_size": 64, "class_position": False},
    "narrow MLP": {"name": "vit_small_patch16_224", "image_size": 64, "mlp_ratio": 2},
    "registers alone": {"name": "vit_small_patch16_224", "image_size": 64, "registers": 3, "class_token": False},
    "fixed positions": {"name": "vit_small_patch16_224", "image_size": 64, "positions": "sincos"},
    "small patches": {"name": "vit_small_patch16_224", "image_size": 32, "patch_size": 8},
    "layer scale": {"name": "vit_base_patch14_dinov2", "image_size": 56},
    "layer scale, registers": {"name": "vit_small_patch14_reg4_dinov2", "image_size": 56},
    "position of patches only": {"name": "deit3_small_patch16_224", "image_size": 64},
    "norm before the blocks": {"name": "vit_base_patch16_clip_224", "image_size": 64},
    "pooled by attention": {"name": "vit_base_patch16_siglip_224", "image_size": 64},
    "gated MLP": {"name": "vit_giant_patch14_reg4_dinov2", "image_size": 56, "dim": 96},
}


def tiny(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**(SMALL | {"image_size": 64} | changes)))


def lively(backbone: Any) -> Any:
    """Move tokens, positions and layer scales far from their small initial values, so that mistakes become visible."""
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if name.endswith(("cls_token", "reg_token", "pos_embed", "gamma", "mask_token", "bias")):
                parameter.add_(0.5 * torch.randn_like(parameter))
    return backbone


def pictures(backbone: Backbone, rows: int, columns: int, count: int = 2) -> Tensor:
    side = backbone.patch_size
    return torch.randn(count, 3, rows * side, columns * side, generator=torch.Generator().manual_seed(1))


def joined(tokens: Tokens) -> Tensor:
    parts = [] if tokens.cls is None else [tokens.cls[:, None]]
    return torch.cat([*parts, tokens.registers, tokens.patches], dim=1)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_output_equals_timms(kind: str) -> None:
    backbone = lively(tiny(**KINDS[kind]))
    for rows, columns in ((4, 4), (2, 5)):
        pixels = pictures(backbone, rows, columns)
        tokens = backbone(pixels)
        assert tokens.grid == (rows, columns)
        assert tokens.patches.shape[1] == rows * columns
        torch.testing.assert_close(joined(tokens), backbone.network.forward_features(pixels), atol=1e-6, rtol=1e-6)


def embedded(backbone: Any, pixels: Tensor) -> Tensor:
    """Patch embeddings without positions."""
    return backbone.network.patch_embed.proj(pixels).flatten(2).transpose(1, 2)


def finished(backbone: Any, patches: Tensor) -> Tensor:
    """The output for patches that already have their positions: class token and blocks applied."""
    network = backbone.network
    cls = (network.cls_token + network.pos_embed[:, :1]).expand(len(patches), -1, -1)
    return network.norm(network.blocks(torch.cat([cls, patches], dim=1)))


@torch.no_grad()
def test_masked_patches_are_replaced_before_positions_are_added() -> None:
    backbone = lively(tiny(mask_token=True))
    pixels = pictures(backbone, 4, 4)
    mask = torch.rand(2, 16, generator=torch.Generator().manual_seed(2)) < 0.4
    patches = embedded(backbone, pixels)
    for image in range(2):
        for patch in range(16):
            if mask[image, patch]:
                patches[image, patch] = backbone.mask_token[0]
    expected = finished(backbone, patches + backbone.network.pos_embed[:, 1:])
    torch.testing.assert_close(joined(backbone(pixels, mask=mask)), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_only_kept_patches_are_processed_in_the_given_order() -> None:
    backbone = lively(tiny())
    pixels = pictures(backbone, 4, 4)
    keep = torch.tensor([[5, 0, 11], [15, 2, 3]])
    placed = embedded(backbone, pixels) + backbone.network.pos_embed[:, 1:]
    expected = finished(backbone, torch.stack([placed[image, keep[image]] for image in range(2)]))
    tokens = backbone(pixels, keep=keep)
    assert tokens.grid == (4, 4)
    torch.testing.assert_close(joined(tokens), expected, atol=1e-5, rtol=0)


def test_an_empty_mask_still_gives_the_mask_token_a_gradient() -> None:
    backbone = tiny(mask_token=True)
    pixels = pictures(backbone, 4, 4)
    nothing = torch.zeros(2, 16, dtype=torch.bool)
    tokens = backbone(pixels, mask=nothing)
    assert torch.equal(joined(tokens), joined(backbone(pixels)))
    tokens.patches.sum().backward()
    assert not backbone.mask_token.grad.any()  # zero but present, so that processes without masked patches stay in sync


def test_registers_have_no_position_and_start_far_apart() -> None:
    backbone = tiny(dim=256, registers=64, image_size=64)
    assert backbone.network.pos_embed.shape[1] == 16
    registers = backbone.network.reg_token[0].detach()
    assert registers.std() == pytest.approx(256**-0.5, rel=0.05)
    assert torch.corrcoef(registers).fill_diagonal_(0).abs().max() < 0.35


def test_a_class_token_can_have_a_position_while_registers_have_none() -> None:
    backbone = tiny(registers=3, class_position=True, layer_norm_eps=1e-12)
    table = backbone.network.pos_embed
    assert table.shape[1] == 1 + 3 + 16
    joined(backbone(pictures(backbone, 4, 4))).square().sum().backward()
    assert table[0, 0].any()
    assert not table[0, 1:4].any()
    assert torch.equal(table.grad[0, :1], backbone.network.cls_token.grad[0])
    assert not table.grad[0, 1:4].any()
    assert table.grad[0, 4:].any()
    assert {module.eps for module in backbone.modules() if isinstance(module, nn.LayerNorm)} == {1e-12}


def test_fixed_positions_do_not_learn() -> None:
    backbone = tiny(positions="sincos")
    table = backbone.network.pos_embed
    assert not table.requires_grad
    assert not table[0, 0].any()
    assert torch.equal(table[0, 1:], sincos_table(64, (4, 4)))


def test_dropped_paths_follow_the_definition() -> None:
    from asterism.nn.stochastic_depth import branch_factors

    backbone = tiny(drop_path=0.5)
    pixels, keys = pictures(backbone, 4, 4), torch.tensor([3, 8])
    network = backbone.network
    x = network._pos_embed(network.patch_embed(pixels))
    for block, factor in zip(network.blocks, branch_factors(keys, 3, 0.5, keys.device), strict=True):
        assert factor is not None
        x = x + factor[0][:, None, None] * block.attn(block.norm1(x))
        x = x + factor[1][:, None, None] * block.mlp(block.norm2(x))
    torch.testing.assert_close(joined(backbone(pixels, drop_keys=keys)), network.norm(x), atol=1e-5, rtol=0)


def test_checkpointing_changes_memory_not_gradients() -> None:
    gradients = []
    for checkpointing in (False, True):
        backbone = tiny(drop_path=0.5, checkpointing=checkpointing)
        calls = []
        backbone.network.blocks[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        pixels = pictures(backbone, 4, 4)
        passes = [backbone(pixels, drop_keys=torch.tensor(keys)) for keys in ([1, 2], [3, 4])]
        passes.append(backbone(pixels))
        sum(tokens.patches.square().sum() * (i + 1) for i, tokens in enumerate(passes)).backward()
        gradients.append({name: parameter.grad for name, parameter in backbone.named_parameters()})
        assert len(calls) == (6 if checkpointing else 3)  # blocks are called as modules, so that hooks on them work
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


@pytest.mark.parametrize("kind", ["class token", "registers", "no class token"])
@torch.no_grad()
def test_layers_have_the_final_norm(kind: str) -> None:
    backbone = lively(tiny(**KINDS[kind]))
    pixels = pictures(backbone, 2, 5)
    expected = backbone.network.get_intermediate_layers(pixels, [0, 1, 2], norm=True)
    last, first = backbone.layers(pixels, [-1, 0])
    torch.testing.assert_close(first.patches, expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(last.patches, expected[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(joined(last), joined(backbone(pixels)))
    assert backbone.layers(pixels, []) == []
    with pytest.raises(UserError, match="block 3 does not exist in a network of 3; choose -3 … 2"):
        backbone.layers(pixels, [3])


@torch.no_grad()
def test_attention_weights_are_those_the_block_uses() -> None:
    backbone = lively(tiny(registers=2))
    pixels = pictures(backbone, 4, 4)
    seen: list[tuple[Tensor, Tensor]] = []
    attention = backbone.network.blocks[1].attn
    hook = attention.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    weights = backbone.attention(pixels, block=1)
    hook.remove()
    assert weights.shape == (2, 4, 19, 19)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 19))
    tokens, output = seen[0]
    values = attention.qkv(tokens)[..., 128:].view(2, 19, 4, 16).transpose(1, 2)
    mixed = (weights @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.proj(mixed), output, atol=1e-5, rtol=0)
    assert not torch.allclose(weights, backbone.attention(pixels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "vit_smal_patch16_224"}, "no model 'vit_smal_patch16_224'; did you mean 'vit_small_patch16_224'"),
        ({"name": "qqq"}, "`asterism list models` lists all"),
        ({"name": "vit_small_patch16_224.nonsense"}, "Invalid pretrained tag"),
        ({"name": "resnet18"}, "'resnet18' is neither a plain vision transformer nor a Swin"),
        ({"name": "deit_tiny_distilled_patch16_224"}, "timm cannot build 'deit_tiny_distilled_patch16_224' with"),
        ({"dim": 100, "heads": None}, "backbone.dim = 100 is not a multiple of 32; give backbone.heads"),
        ({"dim": 96, "heads": 5}, "backbone.dim = 96 is not divisible by backbone.heads = 5"),
        ({"dim": None, "heads": 5}, "should be divisible by num_heads"),
        ({"image_size": 60}, "backbone.image_size = 60 is not a multiple of the patch size 16"),
        ({"dim": 66, "heads": 3, "positions": "sincos"}, "divisible by 4, got 66"),
    ],
)
def test_errors_name_impossible_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(**changes)
