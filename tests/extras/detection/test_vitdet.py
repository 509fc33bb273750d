"""ViTDet's backbone: windows, and the simple pyramid."""

import pytest
import torch

from asterism.errors import UserError
from asterism.extras.detection.window_attention import from_windows, to_windows, windowed_tokens
from asterism.nn.backbone import build_backbone
from asterism.nn.vit import ViT
from tests.extras.detection.drawn import detector
from tests.finetuning.tiny import BACKBONE, SWIN

PLAIN = BACKBONE.model_copy(update={"class_token": False})


def plain() -> ViT:
    torch.manual_seed(0)
    backbone = build_backbone(PLAIN)
    assert isinstance(backbone, ViT)
    return backbone


def test_a_window_that_covers_everything_is_full_attention() -> None:
    backbone, images = plain(), torch.rand(2, 3, 32, 48)
    (full,) = backbone.block_outputs(images, [-1])
    for window in (6, 7, 10):  # also with filling up to a square
        found = windowed_tokens(backbone, images, window, set(), None)
        torch.testing.assert_close(found.patches, full.patches, atol=1e-5, rtol=1e-5)


def test_small_windows_do_not_see_each_other() -> None:
    backbone, images = plain(), torch.rand(1, 3, 32, 32)
    changed = images.clone()
    changed[..., 16:] = 0.3  # the right half
    found, other = (
        windowed_tokens(backbone, each, 2, set(), None).patches.unflatten(1, (4, 4)) for each in (images, changed)
    )
    torch.testing.assert_close(found[:, :, :2], other[:, :, :2])
    assert not torch.allclose(found[:, :, 2:], other[:, :, 2:])
    whole = windowed_tokens(backbone, changed, 2, {2}, None).patches.unflatten(1, (4, 4))
    before = windowed_tokens(backbone, images, 2, {2}, None).patches.unflatten(1, (4, 4))
    assert not torch.allclose(whole[:, :, :2], before[:, :, :2])


def test_windows_can_be_undone() -> None:
    x = torch.rand(2, 5 * 7, 3)
    windows, allowed = to_windows(x, (5, 7), 4)
    assert windows.shape == (2 * 2 * 2, 16, 3)
    assert allowed is not None
    assert int(allowed.sum()) == 2 * 5 * 7
    assert torch.equal(from_windows(windows, (5, 7), 4), x)
    assert to_windows(x, (5, 7), 1)[1] is None


def test_dropped_paths_are_those_of_the_image() -> None:
    """An image drops the same paths with windows as without."""
    torch.manual_seed(0)
    backbone = build_backbone(PLAIN.model_copy(update={"drop_path": 0.7}))
    assert isinstance(backbone, ViT)
    images, keys = torch.rand(3, 3, 32, 32), torch.tensor([4, 5, 6])
    (full,) = backbone.block_outputs(images, [-1], drop_keys=keys)
    found = windowed_tokens(backbone, images, 4, set(), keys)
    torch.testing.assert_close(found.patches, full.patches, atol=1e-5, rtol=1e-5)


def test_windows_and_pyramids_must_fit_the_network() -> None:
    with pytest.raises(UserError, match="pyramid = simple is for networks with one resolution"):
        detector("mask-rcnn", SWIN, 64, pyramid="simple")
    with pytest.raises(UserError, match=r"window is for task\.head\.pyramid=simple"):
        detector("mask-rcnn", window=2)
