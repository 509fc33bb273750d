from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.weights.load import load_encoder

KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "no class token": {"class_token": False},
    "registers": {"registers": 2},
    "fixed positions": {"positions": "sincos"},
    "trained with masks": {"mask_token": True, "drop_path": 0.2},
    "layer scale": {"name": "vit_small_patch14_reg4_dinov2", "image_size": 28},
    "swin": {"name": "swin_tiny_patch4_window7_224", "depth": None, "heads": None, "patch_size": 8},
}


def tiny(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    settings = {"dim": 64, "depth": 2, "heads": 2, "image_size": 32} | changes
    return Encoder(build_backbone(BackboneConfig(**settings)))


def photos(count: int = 2, size: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_the_image_feature_is_the_class_token_or_the_mean_patch() -> None:
    pixels = torch.randn(2, 3, 32, 32)
    with_token, without = tiny(), tiny(class_token=False)
    tokens = with_token.backbone(pixels)
    assert torch.equal(with_token(pixels).cls, tokens.cls)
    features = without(pixels)
    torch.testing.assert_close(features.cls, without.backbone(pixels).patches.mean(dim=1))
    assert features.grid == (2, 2)
    assert features.sparse is None


def test_images_can_have_many_forms() -> None:
    encoder, images = tiny(), photos()
    mean, std = (torch.tensor(values)[:, None, None] for values in (encoder.mean, encoder.std))
    expected = encoder((images / 255 - mean) / std).patches.detach()
    arrays = [image.permute(1, 2, 0).numpy() for image in images]
    for form in (images, images / 255, arrays, [Image.fromarray(array) for array in arrays], list(images)):
        features = encoder.encode(form)
        torch.testing.assert_close(features.patches, expected)
        assert not features.patches.requires_grad


def test_errors_name_invalid_images() -> None:
    encoder = tiny()
    with pytest.raises(UserError, match="no images"):
        encoder.encode([])
    with pytest.raises(UserError, match=r"the batch of shape \[1, 1, 32, 32\] has no axis of 3 channels"):
        encoder.encode(torch.zeros(1, 1, 32, 32))
    with pytest.raises(UserError, match="got int64"):
        encoder.encode(torch.zeros(1, 3, 32, 32, dtype=torch.int64))
    with pytest.raises(UserError, match="image_size = 50 is not a multiple of the patch size 16"):
        Encoder(encoder.backbone, image_size=50)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_plain_timm_loads_a_saved_encoder(kind: str, tmp_path: Path) -> None:
    encoder = tiny(**KINDS[kind])
    path = encoder.save(tmp_path / "encoder.safetensors")
    network = timm.create_model(**encoder.timm_arguments).eval()
    network.load_state_dict(load_file(path), strict=True)
    side = encoder.backbone.patch_size
    for rows, columns in ((2, 2), (3, 5)):
        pixels = torch.randn(2, 3, rows * side, columns * side)
        tokens = encoder.backbone(pixels)
        plain = network.forward_features(pixels)
        plain = plain.flatten(1, 2) if plain.ndim == 4 else plain[:, -rows * columns :]
        torch.testing.assert_close(tokens.patches, plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_saved_encoder_loads_unchanged(kind: str, tmp_path: Path) -> None:
    encoder = tiny(**KINDS[kind])
    encoder.mean, encoder.std, encoder.image_size = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 2 * encoder.image_size
    encoder.save(tmp_path, step=17)  # into a folder, such as a run
    again = load_encoder(tmp_path)
    assert (again.mean, again.std, again.image_size, again.step) == (encoder.mean, encoder.std, encoder.image_size, 17)
    pixels = torch.randn(2, 3, 5 * encoder.backbone.patch_size, 3 * encoder.backbone.patch_size)
    assert torch.equal(again(pixels).patches, encoder(pixels).patches)


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_token_alone(kind: str) -> None:
    encoder, images = tiny(**KINDS[kind]).eval(), photos(size=KINDS[kind].get("image_size", 32))
    torch.testing.assert_close(encoder.encode_cls(images), encoder.encode(images).cls, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("class_token", [True, False])
def test_the_class_token_of_an_encoder_with_concepts_alone(class_token: bool) -> None:
    backbone = tiny(registers=3, class_token=class_token).backbone
    encoder = ConceptEncoder(backbone, Localization(64, 0.06)).eval()
    images = photos()
    torch.testing.assert_close(encoder.encode_cls(images), encoder.encode(images).cls, rtol=1e-4, atol=1e-5)
