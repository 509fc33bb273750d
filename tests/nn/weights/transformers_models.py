"""Small networks of the transformers library with unusual values, and their own features."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 6,
    "layer_norm_eps": 1e-3,
}
WIDE = SIZES | {"intermediate_size": 80}
PIXELS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"height": 30, "width": 30}}


@dataclass(frozen=True)
class Kind:
    """How to build a model, and its class token (or pooled vector) and patches for normalised pixels."""

    build: Callable[[Any], Any]
    features: Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def _tokens(first: int) -> Callable[[Any, Tensor], tuple[Tensor, Tensor]]:
    def features(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
        own = pixels.shape[-1] == pixels.shape[-2] == SIZES["image_size"]
        more = {} if own or not hasattr(model.config, "encoder_stride") else {"interpolate_pos_encoding": True}
        states = model(pixels, **more).last_hidden_state
        return states[:, 0], states[:, first:]

    return features


def _mae(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """With mask_ratio = 0 it still shuffles the patches, by noise that is sorted here."""
    patches = pixels.shape[-2] * pixels.shape[-1] // SIZES["patch_size"] ** 2
    noise = torch.arange(patches, dtype=torch.float32).expand(len(pixels), -1)
    states = model(pixels, noise=noise, interpolate_pos_encoding=True).last_hidden_state
    return states[:, 0], states[:, 1:]


def _clip(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The final norm is applied to the class token only; our patches have it too."""
    tower = getattr(model, "vision_model", model)
    found = tower(pixels, interpolate_pos_encoding=True)
    return found.pooler_output, tower.post_layernorm(found.last_hidden_state)[:, 1:]


def _siglip(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    found = model(pixels, interpolate_pos_encoding=True)
    return found.pooler_output, found.last_hidden_state


KINDS: dict[str, Kind] = {
    "ViT": Kind(lambda t: t.ViTModel(t.ViTConfig(**WIDE)), _tokens(1)),
    "ViT without biases": Kind(
        lambda t: t.ViTModel(t.ViTConfig(**WIDE, qkv_bias=False, hidden_act="relu")), _tokens(1)
    ),
    "ViT classifier": Kind(
        lambda t: t.ViTForImageClassification(t.ViTConfig(**WIDE)), lambda m, x: _tokens(1)(m.vit, x)
    ),
    "ViT-MAE": Kind(lambda t: t.ViTMAEModel(t.ViTMAEConfig(**WIDE, mask_ratio=0.0)), _mae),
    "ViT-MAE with decoder": Kind(
        lambda t: t.ViTMAEForPreTraining(
            t.ViTMAEConfig(
                **WIDE,
                mask_ratio=0.0,
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=2,
                decoder_intermediate_size=16,
            )
        ),
        lambda m, x: _mae(m.vit, x),
    ),
    "Dinov2": Kind(lambda t: t.Dinov2Model(t.Dinov2Config(**SIZES, mlp_ratio=2)), _tokens(1)),
    "Dinov2 gated": Kind(lambda t: t.Dinov2Model(t.Dinov2Config(**SIZES, use_swiglu_ffn=True)), _tokens(1)),
    "Dinov2 classifier": Kind(
        lambda t: t.Dinov2ForImageClassification(t.Dinov2Config(**SIZES)), lambda m, x: _tokens(1)(m.dinov2, x)
    ),
    "Dinov2 with registers": Kind(
        lambda t: t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=3)), _tokens(4)
    ),
    "DINOv3 ViT": Kind(
        lambda t: t.DINOv3ViTModel(t.DINOv3ViTConfig(**WIDE, num_register_tokens=3, rope_theta=50.0)), _tokens(4)
    ),
    "DINOv3 ViT gated": Kind(
        lambda t: t.DINOv3ViTModel(
            t.DINOv3ViTConfig(
                **WIDE, num_register_tokens=2, use_gated_mlp=True, hidden_act="silu", query_bias=False, mlp_bias=False
            )
        ),
        _tokens(3),
    ),
    "DINOv3 ViT without registers": Kind(
        lambda t: t.DINOv3ViTModel(t.DINOv3ViTConfig(**WIDE, query_bias=False, value_bias=False)), _tokens(1)
    ),
    "CLIP vision": Kind(lambda t: t.CLIPVisionModel(t.CLIPVisionConfig(**WIDE)), _clip),
    "CLIP vision with projection": Kind(
        lambda t: t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**WIDE, hidden_act="gelu")), _clip
    ),
    "CLIP": Kind(
        lambda t: t.CLIPModel(
            t.CLIPConfig(
                vision_config=WIDE,
                text_config={
                    "hidden_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 16,
                    "vocab_size": 8,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                },
            )
        ),
        _clip,
    ),
    "SigLIP vision": Kind(lambda t: t.SiglipVisionModel(t.SiglipVisionConfig(**WIDE)), _siglip),
}


def build(kind: str) -> Any:
    """A model in which every parameter affects the output."""
    import transformers

    torch.manual_seed(3)
    model = KINDS[kind].build(transformers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def saved(model: Any, folder: Path, preprocessor: dict[str, Any] | None = PIXELS) -> Path:
    model.save_pretrained(folder)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def saved_state(model: Any, folder: Path) -> Path:
    """The state dict of a model with its names in memory, which differ from those of its files."""
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    model.config.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


def features(kind: str, model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    return KINDS[kind].features(model, pixels)
