import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.pixel_baseline import pixel_patches
from asterism.nn.weights.load import load_encoder
from tests.concept_samples import concept_encoder
from tests.evals.samples import small_encoder
from tests.nn.test_encoder import KINDS, tiny


def _with_heads(encoder: Encoder) -> Encoder:
    other = tiny(heads=4)
    other.load_state_dict(encoder.state_dict())
    return other


def _architecture(**changes: object) -> Callable[[Encoder], Encoder]:
    def changed(encoder: Encoder) -> Encoder:
        encoder.backbone.architecture = dataclasses.replace(encoder.backbone.architecture, **changes)
        return encoder

    return changed


def _set(path: str, value: object) -> Callable[[Encoder], Encoder]:
    def changed(encoder: Encoder) -> Encoder:
        *parents, name = path.split(".")
        module: object = encoder
        for parent in parents:
            module = module[int(parent)] if parent.isdigit() else getattr(module, parent)  # type: ignore[index]
        assert getattr(module, name) is not value
        setattr(module, name, value)
        return encoder

    return changed


class _OtherEncoder(Encoder):
    pass


CHANGES: dict[str, Callable[[Encoder], Encoder]] = {
    "heads": _with_heads,
    "epsilon": _set("backbone.network.blocks.1.norm1.eps", 1e-5),
    "activation": _set("backbone.network.blocks.0.mlp.act", nn.ReLU()),
    "approximate activation": _set("backbone.network.blocks.0.mlp.act.approximate", "tanh"),
    "attention scale": _set("backbone.network.blocks.0.attn.scale", 0.5),
    "pooling": _set("backbone.network.global_pool", "avg"),
    "image token": _set("backbone.has_cls", False),
    "size rule": _set("backbone.network.dynamic_img_size", False),
    "resampling": _architecture(resampling="plain"),
    "epsilon of all": _architecture(layer_norm_eps=1e-5),
    "arguments": _architecture(arguments={"no_embed_class": True}),
    "mean": _set("mean", (0.5, 0.5, 0.5)),
    "deviation": _set("std", (0.5, 0.5, 0.5)),
    "image size": _set("image_size", 64),
    "precision": lambda encoder: encoder.half(),
    "class": lambda encoder: _OtherEncoder(encoder.backbone),
}


@pytest.mark.parametrize("change", CHANGES)
def test_everything_that_changes_a_feature_changes_the_fingerprint(change: str) -> None:
    before = encoder_fingerprint(tiny())
    assert encoder_fingerprint(CHANGES[change](tiny())) != before


def test_weights_and_the_parts_of_concepts_count() -> None:
    assert encoder_fingerprint(small_encoder()) == encoder_fingerprint(small_encoder())
    assert encoder_fingerprint(small_encoder()) != encoder_fingerprint(small_encoder(seed=1))
    assert encoder_fingerprint(pixel_patches(16, 8)) != encoder_fingerprint(pixel_patches(16, 4))
    encoder = concept_encoder()
    before = encoder_fingerprint(encoder)
    encoder.localization.temperature = 0.07
    assert encoder_fingerprint(encoder) != before
    encoder.localization.temperature = 0.06
    assert encoder_fingerprint(encoder) == before
    assert encoder_fingerprint(concept_encoder(decoder=False)) != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_encoder_keeps_its_fingerprint(kind: str, tmp_path: Path) -> None:
    """Also one trained with masks, drop path and activation checkpointing."""
    encoder = tiny(**KINDS[kind])
    loaded = load_encoder(encoder.save(tmp_path / "encoder.safetensors"))
    assert encoder_fingerprint(loaded) == encoder_fingerprint(encoder)
    assert encoder_fingerprint(encoder.train()) == encoder_fingerprint(encoder.eval())
    with torch.no_grad():
        encoder.encode(torch.rand(1, 3, 2 * encoder.image_size, encoder.image_size))
    assert encoder_fingerprint(loaded) == encoder_fingerprint(encoder), "not even after images of another size"
