"""Networks that people have and that cannot be encoders here; each is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from asterism.errors import UserError
from asterism.nn.weights.checkpoint_file import CheckpointFile


@dataclass(frozen=True)
class _Refusal:
    what: str
    recognises: Callable[[Iterable[str]], bool]


def _has(*parts: str) -> Callable[[Iterable[str]], bool]:
    return lambda names: any(part in name for name in names for part in parts)


_REFUSALS = (
    _Refusal(
        "an image encoder of MobileSAM or another TinyViT (convolutions, and attention in windows with learned biases)",
        _has("attention_biases"),
    ),
    _Refusal(
        "an image encoder of SAM (attention in windows, with positions relative to each other)",
        lambda names: _has("rel_pos_h")(names) and _has("patch_embed")(names),
    ),
    _Refusal(
        "a part of SAM (prompt encoder or mask decoder)",
        _has("prompt_encoder.", "mask_decoder.", "memory_attention."),
    ),
    _Refusal(
        "a BEiT (positions relative to each other)",
        lambda names: (
            _has("relative_position_bias_table", ".lambda_1")(names) and not _has("layers.0.blocks.0.")(names)
        ),
    ),
    _Refusal(
        "a DeiT with a distillation token",
        _has("embeddings.distillation_token", "dist_token"),
    ),
    _Refusal(
        "a convolutional network",
        lambda names: _has("layer1.0.conv1.weight", "stages.0.0.dwconv", "stages.0.blocks.0.conv_dw")(names),
    ),
)


def refuse_known(file: CheckpointFile) -> None:
    """Raise for a network that is known and not supported."""
    names = list(file.tensors)
    found = next((refusal.what for refusal in _REFUSALS if refusal.recognises(names)), None)
    if found is not None:
        raise UserError(
            f"{file.path} is {found}, which is not supported; encoders are vision transformers (DINO, DINOv2, DINOv3, "
            "iBOT, MAE, CLIP, SigLIP and others) and Swins: see docs/weights.md"
        )
