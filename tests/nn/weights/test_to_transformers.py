"""Native models of transformers compute what our networks compute."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.nn.weights.to_transformers import native_model
from tests.export_samples import small_swin, small_vit, timm_vit

transformers = pytest.importorskip("transformers")

GATED, DINOV3 = "vit_giant_patch14_dinov2", "vit_small_patch16_dinov3"
Maker = Callable[[], Encoder]


@torch.no_grad()
def last_hidden_state(encoder: Encoder, pixels: Tensor, folder: Path) -> Tensor:
    """The tokens of the native model, which has a place for every tensor and lacks none."""
    native = native_model(encoder.backbone)
    (folder / "config.json").write_text(json.dumps(native.config))
    save_file({name: tensor.detach().clone() for name, tensor in native.tensors.items()}, folder / "model.safetensors")
    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert native.config["architectures"] == [type(model).__name__]
    siglip = native.config["model_type"] == "siglip_vision_model"
    return model.eval()(pixels, **({"interpolate_pos_encoding": True} if siglip else {})).last_hidden_state


@torch.no_grad()
def tokens(encoder: Encoder, pixels: Tensor) -> Tensor:
    found = encoder.backbone(pixels)
    cls = [] if found.cls is None else [found.cls[:, None]]
    return torch.cat([*cls, found.registers, found.patches], dim=1)


SAMPLES: dict[str, tuple[Maker, str, bool]] = {  # network, native class, equal at every size
    "plain": (lambda: small_vit(resampling="plain"), "Dinov2Model", True),
    "antialiased": (lambda: small_vit(), "Dinov2WithRegistersModel", True),
    "offset": (lambda: small_vit(resampling="offset"), "Dinov2Model", False),
    "registers": (lambda: small_vit(registers=3), "Dinov2WithRegistersModel", True),
    "placed registers": (lambda: small_vit(registers=2, class_position=True), "Dinov2WithRegistersModel", True),
    "registers alone": (lambda: small_vit(class_token=False, registers=2), "Dinov2WithRegistersModel", True),
    "patches alone": (lambda: small_vit(class_token=False, resampling="plain"), "SiglipVisionModel", True),
    "patches alone, scaled": (
        lambda: timm_vit("vit_base_patch16_224", class_token=False, init_values=1e-5, qkv_bias=False),
        "SiglipVisionModel",
        False,
    ),
    "width between ratios": (lambda: small_vit(mlp_ratio=2.6), "Dinov2WithRegistersModel", True),
    "epsilon": (lambda: small_vit(layer_norm_eps=1e-2), "Dinov2WithRegistersModel", True),
    "layer scale": (lambda: timm_vit("vit_base_patch16_224", init_values=1e-5), "Dinov2WithRegistersModel", True),
    "no bias": (lambda: timm_vit("vit_base_patch16_224", qkv_bias=False), "Dinov2WithRegistersModel", True),
    "gated": (lambda: timm_vit(GATED, mlp_ratio=3.0), "Dinov2WithRegistersModel", True),
    "rotary": (lambda: timm_vit(DINOV3), "DINOv3ViTModel", True),
    "rotary, gated, no registers": (
        lambda: timm_vit("vit_small_plus_patch16_dinov3", num_reg_tokens=0, rope_temperature=30.0),
        "DINOv3ViTModel",
        True,
    ),
    "swin": (lambda: small_swin(), "SwinModel", False),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_native_models_are_equal(name: str, tmp_path: Path) -> None:
    make, expected, any_size = SAMPLES[name]
    encoder = make()
    native = native_model(encoder.backbone)
    assert native.config["architectures"] == [expected]
    assert native.any_size is any_size
    size = encoder.image_size
    shapes = [(2, 3, size, size), *([(1, 3, 24, 40), (3, 3, 8, 12)] if any_size else [])]
    for shape in shapes:
        pixels = torch.randn(shape)
        made = last_hidden_state(encoder, pixels, tmp_path)
        torch.testing.assert_close(made, tokens(encoder, pixels), atol=1e-5, rtol=0)


def test_another_resampling_is_stated() -> None:
    assert "'plain', and this model's is 'offset'" in native_model(small_vit(resampling="offset").backbone).notes[0]


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: timm_vit("vit_base_patch16_224", qk_norm=True), "norms of queries and keys"),
        (lambda: timm_vit("vit_base_patch16_224", pre_norm=True), "a norm before its blocks"),
        (lambda: timm_vit("vit_base_patch16_clip_quickgelu_224"), "a norm before its blocks"),
        (lambda: timm_vit("vit_base_patch16_224", act_layer="quick_gelu"), "an MLP of an unknown kind"),
        (lambda: timm_vit(GATED, class_token=False), "a gated MLP and no class token"),
        (lambda: timm_vit("vit_base_patch16_224", global_pool="map"), "a pooling with weights of its own"),
        (lambda: timm_vit("eva02_tiny_patch14_224"), "rotary positions other than DINOv3's"),
        (lambda: small_swin(window=8), "windows of several sizes"),
        (lambda: small_swin(window=3), "windows of 3 patches that do not divide its grids of"),
    ],
)
def test_what_cannot_be_expressed_is_refused(make: Maker, part: str) -> None:
    with pytest.raises(UserError, match=f"has {part}.*use --to timm, onnx or torchscript"):
        native_model(make().backbone)
