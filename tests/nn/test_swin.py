from typing import Any

import pytest
import torch

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone

TINY: dict[str, Any] = {"name": "swin_tiny_patch4_window7_224", "dim": 64, "patch_size": 8, "image_size": 64}


def tiny(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**(TINY | changes)))


@torch.no_grad()
def test_output_equals_timms() -> None:
    backbone = tiny(patch_size=16)
    for height, width in ((64, 64), (32, 112)):
        pixels = torch.randn(2, 3, height, width)
        tokens = backbone(pixels)
        assert tokens.grid == (height // 16, width // 16)
        assert tokens.cls is None
        assert tokens.registers.shape == (2, 0, 64)
        torch.testing.assert_close(tokens.patches, backbone.network.forward_features(pixels).flatten(1, 2))


def test_leaving_out_patches_is_refused() -> None:
    backbone, pixels = tiny(), torch.zeros(1, 3, 64, 64)
    with pytest.raises(UserError, match=r"swin_tiny_patch4_window7_224 cannot leave out patches.* choose a ViT"):
        backbone(pixels, keep=torch.tensor([[0]]))


@torch.no_grad()
def test_a_masked_token_masks_its_pixels() -> None:
    backbone = tiny(mask_token=True)
    assert backbone.mask_token.shape == (1, 8)  # channels of the first stage
    backbone.mask_token.normal_()
    pixels, mask = torch.randn(1, 3, 64, 64), torch.zeros(1, 64, dtype=torch.bool)
    mask[0, 8 * 2 + 5] = True  # rows 16 to 24, columns 40 to 48
    changed = pixels.clone()
    changed[:, :, 16:24, 40:48] += torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(backbone(pixels, mask=mask).patches, backbone(changed, mask=mask).patches)
    assert not torch.allclose(backbone(pixels).patches, backbone(changed).patches)
    outside = pixels.clone()
    outside[:, :, 16:24, 39] += 1
    assert not torch.allclose(backbone(pixels, mask=mask).patches, backbone(outside, mask=mask).patches)
    nowhere = torch.zeros_like(mask)
    torch.testing.assert_close(backbone(pixels, mask=nowhere).patches, backbone(pixels).patches)


@torch.no_grad()
def test_layers_of_the_final_stage() -> None:
    backbone, pixels = tiny(), torch.randn(1, 3, 64, 64)
    last, before = backbone.layers(pixels, [-1, 10])
    torch.testing.assert_close(last.patches, backbone(pixels).patches)
    assert not torch.allclose(before.patches, last.patches)
    assert backbone.first_block == 10


@torch.no_grad()
def test_layers_of_an_earlier_stage_have_their_own_grid_and_no_norm() -> None:
    backbone, pixels = tiny(), torch.randn(1, 3, 64, 64)
    outputs: list[torch.Tensor] = []
    hook = backbone.network.layers[2].blocks[-1].register_forward_hook(lambda *call: outputs.append(call[2]))
    (earlier,) = backbone.layers(pixels, [9])
    hook.remove()
    assert earlier.grid == tuple(outputs[0].shape[1:3]) == tuple(2 * side for side in backbone.grid_of(pixels))
    assert earlier.patches.equal(outputs[0].flatten(1, 2))


@torch.no_grad()
def test_dropped_paths_depend_on_keys_not_on_the_batch() -> None:
    backbone = tiny(drop_path=0.6)
    pixels, keys = torch.randn(3, 3, 64, 64), torch.tensor([5, 6, 7])
    plain, dropped = backbone(pixels), backbone(pixels, drop_keys=keys)
    assert not torch.allclose(plain.patches, dropped.patches, atol=1e-3)
    torch.testing.assert_close(backbone(pixels[1:2], drop_keys=keys[1:2]).patches, dropped.patches[1:2])


def test_checkpointing_changes_memory_not_gradients() -> None:
    pixels, keys, gradients = torch.randn(2, 3, 64, 64), torch.tensor([5, 6]), []
    for checkpointing in (False, True):
        backbone = tiny(drop_path=0.6, checkpointing=checkpointing)
        (backbone(pixels, drop_keys=keys).patches.square().sum() + backbone(pixels).patches.square().sum()).backward()
        gradients.append(backbone.network.layers[0].blocks[0].attn.qkv.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 3}, "backbone.depth = 3 does not fit swin_tiny_patch4_window7_224; leave it out"),
        ({"registers": 2}, "backbone.registers = 2 does not fit"),
        ({"class_token": True}, "backbone.class_token = True does not fit"),
        ({"positions": "sincos"}, "backbone.positions = 'sincos' does not fit"),
        ({"patch_size": 12}, "backbone.patch_size = 12: a Swin needs a multiple of 8"),
        ({"dim": 100}, "backbone.dim = 100: a Swin needs a multiple of 8"),
        ({"image_size": 60}, "backbone.image_size = 60 is not a multiple of 8"),
    ],
)
def test_errors_name_impossible_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(**changes)
