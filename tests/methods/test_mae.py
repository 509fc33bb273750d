import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.mae import Mae, MaeConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops.masking import mask_from_keep
from asterism.ops.patches import patchify
from asterism.types import Batch, Progress
from tests.methods.batches import TINY, random_batch

CONFIG = MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)


def _mae(**changes: object) -> Mae:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Mae(CONFIG.model_copy(update=changes), TINY.model_copy(update={"positions": "sincos"}))


def _slow_loss(method: Mae, batch: Batch) -> Tensor:
    """Image by image, patch by patch, pixel by pixel."""
    pixels = batch.views[0].pixels
    keep = method.visible(batch.keys)
    errors = []
    for image in range(len(pixels)):
        tokens = method.backbone(pixels[image : image + 1], keep=keep[image : image + 1])
        predicted = method.decoder(tokens, keep[image : image + 1])[0]
        for patch in range(16):
            if patch in keep[image]:
                continue
            top, left = 4 * (patch // 4), 4 * (patch % 4)
            target = [pixels[image, c, top + i, left + j] for i in range(4) for j in range(4) for c in range(3)]
            if method.config.target == "normalised":
                mean = sum(target) / 48
                variance = sum((value - mean) ** 2 for value in target) / 47
                target = [(value - mean) / (variance + 1e-6) ** 0.5 for value in target]
            errors.append((predicted[patch] - torch.stack(target)).square().mean())
    return torch.stack(errors).mean()


@pytest.mark.parametrize("target", ["normalised", "pixels"])
def test_loss_and_gradient_are_those_of_the_slow_loop(target: str) -> None:
    method = _mae(target=target)
    batch = random_batch(method, 2)
    trained = [p for p in method.parameters() if p.requires_grad]
    ours, expected = method.loss(batch, PROGRESS).total, _slow_loss(method, batch)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)
    for own, slow in zip(torch.autograd.grad(ours, trained), torch.autograd.grad(expected, trained), strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-6)


def test_removed_pixels_do_not_reach_the_network() -> None:
    method = _mae()
    pixels = random_batch(method, 2).views[0].pixels
    keep = method.visible(torch.tensor([3, 4]))
    mask = mask_from_keep(keep, 16)
    masked, made = method.reconstruct(pixels, keep)
    _, again = method.reconstruct(masked, keep)
    removed, repeated = patchify(made, 4)[mask], patchify(again, 4)[mask]
    # A constant patch has deviation √1e-6: only the scale of the predictions differs, not the predictions themselves.
    scale = (patchify(pixels, 4)[mask].var(dim=1, keepdim=True) + 1e-6).sqrt()
    mean = patchify(pixels, 4)[mask].mean(dim=1, keepdim=True)
    torch.testing.assert_close((removed - mean) / scale, repeated / 1e-3, rtol=1e-3, atol=1e-4)


def test_pictures_contain_the_visible_patches() -> None:
    method = _mae(mask_ratio=0.5)
    pixels = random_batch(method, 3).views[0].pixels
    keep = method.visible(torch.tensor([1, 2, 3]))
    mask = mask_from_keep(keep, 16)
    masked, made = method.reconstruct(pixels, keep)
    assert mask.sum(dim=1).tolist() == [8, 8, 8]
    assert not mask[0].equal(mask[1])
    patches = patchify(pixels, 4)
    assert patchify(masked, 4)[~mask].equal(patches[~mask])
    assert patchify(masked, 4)[mask].abs().max() == 0
    assert patchify(made, 4)[~mask].equal(patches[~mask])
    assert not patchify(made, 4)[mask].equal(patches[mask])
    first, other = (method.pictures(pixels, key=key)["visible patches"] for key in (1, 2))
    assert first.equal(method.pictures(pixels, key=1)["visible patches"])
    assert not first.equal(other)


def test_there_is_one_view_with_flips_and_without_colour_changes() -> None:
    (view,) = _mae().views
    assert (view.size, view.scale, view.flip, view.jitter, view.grayscale, view.blur) == (
        16,
        (0.2, 1.0),
        0.5,
        None,
        0,
        0,
    )
    assert _mae(image_size=24).views[0].size == 24


@pytest.mark.parametrize(
    ("config", "backbone", "message"),
    [
        ({"mask_ratio": 0.95}, {}, "mask_ratio = 0.95 leaves none of 16 patches"),
        ({"image_size": 18}, {}, "image_size = 18 is not a multiple of the patch size 4"),
        ({"decoder_heads": 3}, {}, "cannot have 3 heads"),
        ({}, {"name": "swin_tiny_patch4_window7_224"}, "cannot: choose a timm vit_"),
    ],
)
def test_errors_name_impossible_settings(config: dict[str, object], backbone: dict[str, object], message: str) -> None:
    chosen = TINY.model_copy(update=backbone) if not backbone else BackboneConfig.parse(backbone)
    with pytest.raises(UserError, match=message):
        Mae(CONFIG.model_copy(update=config), chosen)
