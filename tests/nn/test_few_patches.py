import pytest
import torch

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.few_patches import FewPatches, seeing
from asterism.nn.fingerprint import encoder_fingerprint
from tests.concept_samples import concept_encoder


def test_only_the_chosen_patches_reach_the_network() -> None:
    encoder = concept_encoder()
    few = FewPatches(encoder, 5)
    places = few.places(16)
    assert len(places) == len(set(places.tolist())) == 5
    assert places.tolist() == sorted(places.tolist())
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    hidden = torch.ones(4, 4, dtype=torch.bool)
    hidden.view(-1)[places] = False
    changed = images.clone()
    changed[:, :, hidden.repeat_interleave(4, 0).repeat_interleave(4, 1)] = 0.0
    found = few.encode(images)
    assert found.patches.shape == (2, 5, 16)
    torch.testing.assert_close(few.encode(changed).patches, found.patches)
    direct = encoder.backbone(encoder.normalise(images), keep=places.expand(2, -1))
    torch.testing.assert_close(found.patches, direct.patches)


def test_other_numbers_of_tokens_are_other_encoders() -> None:
    encoder = concept_encoder()
    assert seeing(encoder, None) is encoder
    assert encoder_fingerprint(FewPatches(encoder, 5)) != encoder_fingerprint(FewPatches(encoder, 6))


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="tokens = 17, but the images have only 16 patches"):
        FewPatches(concept_encoder(), 17).encode(torch.zeros(1, 3, 16, 16))
    swin = Encoder(build_backbone(BackboneConfig(name="swin_tiny_patch4_window7_224", dim=96)))
    with pytest.raises(UserError, match="cannot skip patches"):
        FewPatches(swin, 4)


def test_the_class_token_alone() -> None:
    encoder = FewPatches(Encoder(concept_encoder().backbone), 5)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encoder.encode_cls(images), encoder.encode(images).cls, rtol=1e-4, atol=1e-5)
