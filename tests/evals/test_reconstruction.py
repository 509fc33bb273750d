from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asterism.data.evaluation.labelled import DataChoice
from asterism.errors import UserError
from asterism.evals import reconstruction
from asterism.evals.reconstruction import Reconstruction, ReconstructionConfig
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.feature_networks import RandomConvolutions, feature_network
from tests.concept_samples import concept_encoder
from tests.evals.samples import small_encoder, write_colours


@pytest.fixture
def encoder() -> ConceptEncoder:
    return concept_encoder()


def _evaluation(folder: Path, **settings: object) -> Reconstruction:
    config = ReconstructionConfig.parse({"network": "random-convolutions", **settings})
    return Reconstruction(config, Reconstruction.open_parts(config, DataChoice(str(folder))))


def test_values_and_the_feature_network(tmp_path: Path, encoder: ConceptEncoder) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 2), batch_size=4)
    values = dict(evaluation.measure(encoder))
    assert list(values) == ["psnr", "ssim", "frechet_random-convolutions-v1", "images"]
    assert values["images"] == 6.0
    assert values["frechet_random-convolutions-v1"] > 0
    assert evaluation.constants(encoder)["network"] == "random-convolutions-v1"
    assert "overestimated" in evaluation.notes()[-1]


def test_an_exact_copy_is_perfect(tmp_path: Path, encoder: ConceptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 2, size=(16, 16)), images=4)
    pictures = torch.stack([evaluation.parts.test[i].image for i in range(4)]).float() / 255
    monkeypatch.setattr(encoder, "reconstruct", lambda sparse, where: pictures)
    values = dict(evaluation.measure(encoder))
    assert values["psnr"] == 100.0
    assert values["ssim"] == pytest.approx(1.0)
    assert values["frechet_random-convolutions-v1"] == pytest.approx(0, abs=1e-4)
    assert values["images"] == 4.0


def test_images_are_resized_to_256_for_a_crop_of_224(
    tmp_path: Path, encoder: ConceptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 1))
    monkeypatch.setattr(encoder, "image_size", 224)
    constants = evaluation.constants(encoder)
    assert (constants["resize"], constants["crop"]) == (256, 224)
    seen: dict[str, object] = {}
    monkeypatch.setattr(reconstruction, "evaluation_batches", lambda *_, **options: seen.update(options) or [])
    with pytest.raises(UserError, match="0 readable images"):
        dict(evaluation.measure(encoder))
    assert seen["resize"] == 256


def test_encoders_that_cannot_reconstruct_are_rejected(tmp_path: Path, encoder: ConceptEncoder) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 1))
    with pytest.raises(UserError, match="has no concepts"):
        dict(evaluation.measure(small_encoder()))
    encoder.reconstruction = None
    with pytest.raises(UserError, match="came without a decoder"):
        dict(evaluation.measure(encoder))


def test_inception_is_used_if_its_weights_are_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UserError, match="Inception's weights are not in"):
        feature_network("inception")
    assert isinstance(feature_network("auto"), RandomConvolutions)


def test_the_random_network_never_changes() -> None:
    images = torch.arange(3 * 16 * 16, dtype=torch.int64).remainder(256).to(torch.uint8).view(1, 3, 16, 16)
    network = RandomConvolutions()
    found = network(images)
    assert found.shape == (1, network.dim)
    assert network.weight0.flatten()[:2].equal(RandomConvolutions().weight0.flatten()[:2])
