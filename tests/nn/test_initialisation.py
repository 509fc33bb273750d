import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from asterism.evals.baselines import untrained
from asterism.methods.mae import Mae, MaeConfig
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.initialisation import Init, choose_init

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 4, "dim": 96, "depth": 3}


def network(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return build_backbone(BackboneConfig(**(SMALL | changes)))


def noise(images: int = 64) -> Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("requested", "dim", "published", "chosen"),
    [
        ("auto", 191, "timm", "width"),
        ("auto", 96, "xavier", "width"),
        ("auto", 192, "timm", "timm"),
        ("auto", 192, "xavier", "xavier"),
        ("auto", 768, "xavier", "xavier"),
        ("timm", 96, "xavier", "timm"),
        ("width", 768, "timm", "width"),
    ],
)
def test_a_narrow_network_starts_with_width_by_default(requested: Any, dim: int, published: Init, chosen: Init) -> None:
    assert choose_init(requested, dim, published) == chosen


def test_weights_have_the_spread_of_their_initialisation() -> None:
    spread = {init: network(init=init).network.blocks[1].mlp.fc2.weight.std().item() for init in get_args(Init)}
    assert spread["timm"] == pytest.approx(0.02, rel=0.02)
    assert spread["xavier"] == pytest.approx(math.sqrt(2 / (96 + 384)), rel=0.02)
    assert spread["width"] == pytest.approx(384**-0.5, rel=0.02)


def test_the_patch_embedding_is_a_linear_map_over_the_pixels_of_a_patch() -> None:
    spread = {init: network(init=init).network.patch_embed.proj.weight.std().item() for init in ("xavier", "width")}
    assert spread["xavier"] == pytest.approx(math.sqrt(2 / (48 + 96)), rel=0.05)
    assert spread["width"] == pytest.approx(48**-0.5, rel=0.05)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_mae_starts_as_published(part: str) -> None:
    torch.manual_seed(0)
    method = Mae(MaeConfig(decoder_dim=256, decoder_depth=1, decoder_heads=4), BackboneConfig(dim=384, depth=1))
    start = method.backbone.network if part == "encoder" else method.decoder
    for name, module in start.named_modules():
        if isinstance(module, torch.nn.Linear):
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.01), name
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01), name
            assert not module.bias.any(), name
        elif isinstance(module, torch.nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones_like(module.weight)), name
            assert not module.bias.any(), name
    token = start.cls_token if part == "encoder" else start.mask_token
    assert token.std().item() == pytest.approx(0.02, rel=0.15)
    if part == "encoder":
        assert start.patch_embed.proj.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (768 + 384)), rel=0.01)


@pytest.mark.parametrize("dim", [32, 96, 160])
@torch.no_grad()
def test_unit_variance_enters_the_blocks_and_every_layer_preserves_it(dim: int) -> None:
    backbone = network(dim=dim, heads=dim // 32)
    assert backbone.architecture.init == "width"
    assert backbone.embedded(noise()).patches.var().item() == pytest.approx(1, rel=0.1)
    measured: list[float] = []
    for block in backbone.network.blocks:
        for layer in (block.attn.qkv, block.mlp.fc1):
            layer.register_forward_hook(lambda _, __, output: measured.append(output.var().item()))
    backbone(noise())
    assert len(measured) == 6
    assert all(0.8 < variance < 1.25 for variance in measured)


def test_a_rebuilt_untrained_encoder_has_the_same_initialisation() -> None:
    encoder = Encoder(network(positions="sincos"))
    twin = untrained(encoder).backbone
    assert twin.architecture == encoder.backbone.architecture
    assert twin.network.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(96**-0.5, rel=0.02)
    assert torch.equal(twin.network.pos_embed, encoder.backbone.network.pos_embed)
