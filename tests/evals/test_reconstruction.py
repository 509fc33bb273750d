from pathlib import Path

import pytest
import torch

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals import reconstruction
from asterism.evals.reconstruction import Reconstruction, ReconstructionConfig
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.perceptual import Lpips
from asterism.nn.tokenizers.saved import save_tokenizer
from asterism.nn.tokenizers.vqgan import MaskGitVqgan
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
    assert list(values) == ["psnr", "ssim", "frechet_random-convolutions-v1", "tokens", "images"]
    assert values["tokens"] == 3.0
    assert values["images"] == 6.0
    assert values["frechet_random-convolutions-v1"] > 0
    assert evaluation.constants(encoder)["network"] == "random-convolutions-v1"
    assert any("overestimated" in note for note in evaluation.notes())


def test_an_exact_copy_is_perfect(tmp_path: Path, encoder: ConceptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 2, size=(16, 16)), images=4)
    pictures = torch.stack([evaluation.parts.test[i].image for i in range(4)]).float() / 255
    monkeypatch.setattr(encoder, "reconstruct", lambda sparse, where: pictures)
    values = dict(evaluation.measure(encoder))
    assert values["psnr"] == 100.0
    assert values["ssim"] == pytest.approx(1.0)
    assert values["frechet_random-convolutions-v1"] == pytest.approx(0, abs=1e-4)
    assert values["images"] == 4.0


def test_encoders_that_cannot_reconstruct_are_rejected(tmp_path: Path, encoder: ConceptEncoder) -> None:
    evaluation = _evaluation(write_colours(tmp_path, 1))
    with pytest.raises(UserError, match="has no concepts"):
        dict(evaluation.measure(small_encoder()))
    encoder.reconstruction = None
    with pytest.raises(UserError, match="came without a decoder"):
        dict(evaluation.measure(encoder))


def test_a_tokenizer_is_measured(tmp_path: Path, encoder: ConceptEncoder) -> None:
    torch.manual_seed(0)
    vqgan = MaskGitVqgan(width=32, multipliers=(1, 2), blocks=1, channels=4, vocabulary=6).eval()
    save_tokenizer(vqgan, tmp_path / "vq.safetensors")
    photos = write_colours(tmp_path / "photos", 1, size=(16, 16))
    evaluation = _evaluation(photos, tokenizer=str(tmp_path / "vq.safetensors"))
    values = dict(evaluation.measure(encoder))
    images = torch.stack([evaluation.parts.test[i].image for i in range(3)]).float() / 255
    with torch.no_grad():
        made = (vqgan.decode(vqgan.encode(images)) * 255).round() / 255
    error = (made - images).square().mean(dim=(1, 2, 3))
    assert values["psnr"] == pytest.approx(float((-10 * error.log10()).mean()), rel=1e-4)
    assert values["tokens"] == 64.0  # one per 2 × 2 pixels
    assert evaluation.baselines(encoder) == {}
    larger = _evaluation(photos, tokenizer=str(tmp_path / "vq.safetensors"), side=20)
    assert dict(larger.measure(encoder))["tokens"] == 100.0
    assert larger.constants(encoder)["crop"] == 20


@pytest.mark.parametrize("tokens", [None, 2])
def test_a_decoder_is_trained_on_a_frozen_encoder(tmp_path: Path, tokens: int | None) -> None:
    photos = write_colours(tmp_path, 10, size=(16, 16))
    decoder = {"tokens": tokens, "steps": 25, "images": 8, "dim": 16, "depth": 1, "heads": 2, "lr": 0.01}
    encoder = small_encoder()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    evaluation = _evaluation(photos, decoder=decoder)
    values = dict(evaluation.measure(encoder))
    train, test = (set(part.keys()) for part in (evaluation.parts.train, evaluation.parts.test))
    assert (len(train), len(test)) == (24, 6)
    assert not train & test
    assert values["tokens"] == (4.0 if tokens is None else 2.0)
    assert values["images"] == 6.0
    short = decoder | {"steps": 1}
    first, again = (dict(_evaluation(photos, decoder=short).measure(encoder)) for _ in range(2))
    assert first == again, "a function of the seed"
    assert values["psnr"] > first["psnr"] + 3
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_lpips_is_a_value_where_its_networks_are(
    tmp_path: Path, encoder: ConceptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [torch.nn.Conv2d(3, 4, 1), *(torch.nn.Identity() for _ in range(11))]
    heads = {f"lin{number}.model.1.weight": torch.ones(1, 4, 1, 1) for number in range(5)}
    distance = Lpips("alex", heads, torch.nn.Sequential(*layers))
    monkeypatch.setattr(reconstruction, "perceptual_distance", lambda name: distance)
    photos = write_colours(tmp_path, 1)
    assert "lpips_alex" not in dict(_evaluation(photos).measure(encoder)), "images of 16 pixels are too small"
    with pytest.raises(UserError, match="LPIPS needs images of at least 32 pixels, and these have 16"):
        dict(_evaluation(photos, perceptual="alex").measure(encoder))
    monkeypatch.setattr(reconstruction, "SMALLEST_LPIPS_SIDE", 16)
    assert dict(_evaluation(photos, perceptual="alex").measure(encoder))["lpips_alex"] > 0
