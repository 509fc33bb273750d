import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.weights.description import GuessedWeights
from asterism.nn.weights.load import load_encoder
from tests.nn.weights import transformers_models
from tests.nn.weights.transformers_models import KINDS, PIXELS, saved, saved_state

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Saving draws a progress bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def pixels(rows: int, columns: int) -> Tensor:
    return torch.randn(2, 3, 6 * rows, 6 * columns, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_features_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = transformers_models.build(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessedWeights)
        encoder = load_encoder(saved(model, tmp_path))
        again = load_encoder(saved_state(model, tmp_path / "state"))
    assert (encoder.mean, encoder.std, encoder.image_size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 30)
    for shape in ((5, 5), (4, 7)):
        expected = transformers_models.features(kind, model, pixels(*shape))
        for found in (encoder(pixels(*shape)), again(pixels(*shape))):
            torch.testing.assert_close(found.cls, expected[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found.patches, expected[1], atol=1e-5, rtol=1e-5)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    model = transformers_models.build("Dinov2")
    whole = load_encoder(saved(model, tmp_path / "whole"))
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.equal(load_encoder(tmp_path)(pixels(5, 5)).cls, whole(pixels(5, 5)).cls)
    next(iter(tmp_path.glob("model-00002*"))).unlink()
    with pytest.raises(UserError, match=r"lists model-00002.*, which is not in its folder"):
        load_encoder(tmp_path)


def test_what_the_folder_does_not_state_is_guessed_aloud(tmp_path: Path) -> None:
    saved(transformers_models.build("CLIP vision"), tmp_path, None)
    with pytest.warns(GuessedWeights, match=r"Assumed: mean=\(0\.481455, .*\), std=.*give mean=, std="):
        load_encoder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="width 48 and does not state its number of heads; give heads="):
        load_encoder(tmp_path)
    with pytest.warns(GuessedWeights, match=r"eps=1e-05, activation=quick_gelu, pooling=class, mean="):
        load_encoder(tmp_path, heads=4)


def test_the_preprocessor(tmp_path: Path) -> None:
    saved(transformers_models.build("ViT"), tmp_path)

    def reads(**changes: Any) -> Any:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(PIXELS | changes))
        return load_encoder(tmp_path)

    assert reads(do_normalize=False).mean == (0.0, 0.0, 0.0)
    assert reads(do_normalize=False).std == (1.0, 1.0, 1.0)
    assert reads(rescale_factor=1 / 255).mean == (0.1, 0.2, 0.3)
    # x/127.5 - mean = 2 (x/255 - mean/2)
    assert reads(rescale_factor=1 / 127.5).mean == pytest.approx((0.05, 0.1, 0.15))
    assert reads(rescale_factor=1 / 127.5).std == pytest.approx((0.2, 0.25, 0.3))
    assert reads(do_center_crop=True, crop_size={"height": 24, "width": 24}).image_size == 24
    assert reads(size={"shortest_edge": 40}).image_size == 30
    assert reads(size=31).image_size == 30  # does not divide into patches
    with pytest.raises(UserError, match=r"preprocessor_config.json: image_mean = \[0.5\]"):
        reads(image_mean=[0.5])


def test_unknown_parts_are_refused_by_name(tmp_path: Path) -> None:
    import transformers

    sizes = transformers_models.WIDE
    vit = transformers_models.build("ViT")
    vit.register_parameter("extra", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(UserError, match="has a tensor 'extra' that no supported network of transformers has"):
        load_encoder(saved(vit, tmp_path / "vit"))
    deit = transformers.DeiTModel(transformers.DeiTConfig(**sizes))
    with pytest.raises(UserError, match="distillation_token' that no supported network"):
        load_encoder(saved(deit, tmp_path / "deit"))
    keyed = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sizes, key_bias=True))
    with torch.no_grad():
        for name, parameter in keyed.named_parameters():
            if name.endswith("k_proj.bias"):
                parameter.fill_(1.0)
    with pytest.raises(UserError, match=r"k_proj\.bias has a bias for keys"):
        load_encoder(saved(keyed, tmp_path / "keyed"))
