import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.nn import frozen_encoder
from asterism.nn.frozen_encoder import FrozenEncoder
from asterism.nn.weights.load import load_encoder
from tests.train.tiny import TEACHER


def _images(side: int) -> torch.Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_features_are_those_of_the_encoder_with_its_own_statistics_and_size() -> None:
    frozen, encoder = FrozenEncoder(str(TEACHER)), load_encoder(TEACHER)
    assert (frozen.size, frozen.dim) == (24, 24)
    images = _images(24)
    expected = encoder.encode(images)
    found = frozen(images)
    torch.testing.assert_close(found.cls, expected.cls)
    torch.testing.assert_close(found.patches, expected.patches)
    small = _images(16)
    enlarged = F.interpolate(small, (24, 24), mode="bicubic", antialias=True).clamp(0, 1)
    torch.testing.assert_close(frozen(small).cls, encoder.encode(enlarged).cls)


def test_the_input_size_can_be_chosen() -> None:
    assert FrozenEncoder(str(TEACHER), size="view", view=35).size == 32
    assert FrozenEncoder(str(TEACHER), size="view", view=3).size == 8
    assert FrozenEncoder(str(TEACHER), size=40)(_images(16)).grid == (5, 5)
    with pytest.raises(UserError, match="image_size = 20 is not a multiple of the patch size 8"):
        FrozenEncoder(str(TEACHER), size=20)


def test_loading_does_not_change_random_draws() -> None:
    before = torch.get_rng_state()
    frozen = FrozenEncoder(str(TEACHER), {"std": [0.9, 0.9, 0.9]})
    assert frozen.encoder.std == (0.9, 0.9, 0.9)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_trained_and_no_graph_is_built() -> None:
    frozen = FrozenEncoder(str(TEACHER))
    features = frozen(_images(24).requires_grad_())
    assert not features.cls.requires_grad
    assert not frozen.encoder.training
    assert not any(parameter.requires_grad for parameter in frozen.encoder.parameters())


def test_a_network_in_use_is_shared_and_replaced_weights_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "teacher.safetensors"
    shutil.copy(TEACHER, path)
    reads = []
    monkeypatch.setattr(
        frozen_encoder, "load_encoder", lambda source, **options: reads.append(source) or load_encoder(source)
    )
    first, again = FrozenEncoder(str(path)), FrozenEncoder(str(path))
    assert first.encoder is again.encoder
    assert len(reads) == 1
    other = load_encoder(path)
    with torch.no_grad():
        other.backbone.network.cls_token.add_(1)
    other.save(path)
    assert FrozenEncoder(str(path)).fingerprint != first.fingerprint
    assert len(reads) == 2
