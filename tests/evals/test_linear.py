from pathlib import Path

import pytest
import torch

from asterism.data import evaluation_batches
from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.linear import Linear, LinearConfig
from asterism.evals.linear_sparse import LinearSparse, LinearSparseConfig
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.pixel_baseline import pixel_encoder
from tests.evals.samples import small_encoder, write_colours


def _linear(folder: Path, **settings: object) -> Linear:
    config = LinearConfig.parse(settings)
    return Linear(config, Linear.open_parts(config, DataChoice(str(folder))))


def test_colours_are_separated_and_diverged_heads_are_not_chosen(tmp_path: Path) -> None:
    write_colours(tmp_path, 8)
    values = dict(_linear(tmp_path, learning_rates=[1e-9, 0.01, 1e12], epochs=10).measure(pixel_encoder()))
    assert values["top1"] == 100.0
    assert values["chosen_learning_rate"] == pytest.approx(0.01 * 18 / 256)  # 18 of 24 images are for training


def test_features_of_the_last_blocks(tmp_path: Path) -> None:
    write_colours(tmp_path, 4)
    for feature, dim in (("cls4", 16), ("cls-mean", 32), ("auto", 16)):  # one block of 16 channels
        evaluation = _linear(tmp_path, feature=feature, epochs=1, learning_rates=[0.1])
        assert evaluation._features(small_encoder(), evaluation.parts.test).features.shape[1] == dim
        assert "top1" in dict(evaluation.measure(small_encoder()))
    assert _linear(tmp_path).constants(small_encoder())["feature"] == "cls4"


@torch.no_grad()
def test_without_a_class_token_the_mean_patch_of_four_blocks_is_classified(tmp_path: Path) -> None:
    write_colours(tmp_path, 2)
    torch.manual_seed(0)
    config = BackboneConfig(name="swin_tiny_patch4_window7_224", image_size=64, patch_size=16, dim=768, window=2)
    encoder = Encoder(build_backbone(config)).eval()
    evaluation = _linear(tmp_path)
    assert evaluation.constants(encoder)["feature"] == "mean4"
    found = evaluation._features(encoder, evaluation.parts.test)
    images = next(evaluation_batches(evaluation.parts.test, 64, resize=evaluation.constants(encoder)["resize"])).images
    layers = encoder.backbone.layers(encoder.normalise(images), [-4, -3, -2, -1])
    assert [tokens.patches.shape[2] for tokens in layers] == [384, 384, 768, 768], "two blocks of each of two stages"
    expected = torch.cat([tokens.patches.mean(1) for tokens in layers], dim=1)
    torch.testing.assert_close(found.features, expected)
    plain = Encoder(
        build_backbone(BackboneConfig(dim=768, depth=5, heads=2, image_size=16, patch_size=8, class_token=False))
    )
    assert evaluation.constants(plain)["feature"] == "mean4"
    assert _linear(tmp_path, feature="cls-mean").constants(plain)["feature"] == "mean", "not twice the same"
    assert _linear(tmp_path).constants(pixel_encoder())["feature"] == "mean4"


def test_the_sparse_form_with_other_features(tmp_path: Path) -> None:
    write_colours(tmp_path, 8)
    for feature in ("cls", "patches"):
        config = LinearSparseConfig.parse(
            {"feature": feature, "head_batches": [4, 8192], "learning_rates": [1e-2], "epochs": 10}
        )
        evaluation = LinearSparse(config, LinearSparse.open_parts(config, DataChoice(str(tmp_path))))
        values = dict(evaluation.measure(pixel_encoder()))
        assert values["top1"] == 100.0
        assert values["chosen_batch"] in (4.0, 15.0)  # 18 training images minus one held out per class
    config = LinearSparseConfig()
    with pytest.raises(UserError, match="no concept tokens"):
        dict(LinearSparse(config, evaluation.parts).measure(small_encoder()))


def test_the_same_seed_gives_the_same_values(tmp_path: Path) -> None:
    write_colours(tmp_path, 4)
    state = torch.random.get_rng_state()
    first, second = (dict(_linear(tmp_path, epochs=2).measure(small_encoder())) for _ in range(2))
    assert first == second
    assert torch.random.get_rng_state().equal(state), "the global generator is not used"
