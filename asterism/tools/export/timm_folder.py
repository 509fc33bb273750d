"""A timm folder: plain timm code opens it, with normalisation and crop in `pretrained_cfg`."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.finetuning.model import FinetunedModel
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import TextEncoder
from asterism.nn.weights.timm_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    TimmClassifier,
    open_timm_folder,
    unusual_eps,
    write_timm_folder,
)
from asterism.ops.normalise import normalise
from asterism.tools.export.target import Model, Target, Written, feature_sizes


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    classifier = classifier_of(encoder)
    write_timm_folder(encoder, folder, dtype, classifier)
    eps, notes = unusual_eps(encoder.backbone), list(notes_of(encoder, classifier))
    if eps is not None:
        notes.append(
            f"timm has no setting for the epsilon of layer norms, {eps:g}: set it after loading, see README.md"
        )
    if isinstance(encoder, ConceptEncoder):
        notes.append(
            "concept tokens are the registers of forward_features; maps and reconstruction are left out, timm has no "
            "place for them"
        )
    usage = _usage(eps, "scores" if classifier is not None else "vector")
    return Written(sizes_of(encoder), tuple(notes), usage, has_head=classifier is not None)


def classifier_of(encoder: Encoder) -> TimmClassifier | None:
    """The classifier of a fine-tuned model, if it is one that timm has a place for."""
    linear = encoder.task.linear_classifier() if isinstance(encoder, FinetunedModel) else None
    return None if linear is None else TimmClassifier(**vars(linear))


def sizes_of(encoder: Encoder) -> tuple[tuple[int, int], ...]:
    """The sizes of images at which timm computes the same: it resamples positions in one form."""
    backbone = encoder.backbone
    positions = getattr(backbone.network, "pos_embed", None)
    return feature_sizes(encoder, backbone.architecture.resampling == "antialiased" or positions is None)


def notes_of(encoder: Encoder, classifier: TimmClassifier | None) -> tuple[str, ...]:
    """What a network of timm lacks."""
    backbone, notes = encoder.backbone, []
    if isinstance(encoder, FinetunedModel) and classifier is None:
        notes.append(
            "the head is left out: timm has a place for one linear layer on the pooled tokens only; "
            "--to onnx and safetensors keep it"
        )
    if len(sizes_of(encoder)) == 1:
        notes.append(
            f"equal at {backbone.image_size} pixels only: for other sizes timm resamples positions by the form "
            f"'antialiased', and this model's is {backbone.architecture.resampling!r}"
        )
    if isinstance(encoder, TextEncoder):
        notes.append("the probe that aligns it with text is left out; --to safetensors and onnx keep it")
    return tuple(notes)


def open_model(folder: Path) -> Model:
    network = open_timm_folder(folder)
    details = network.pretrained_cfg
    classes = network.num_classes

    @torch.no_grad()
    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        tokens = network.forward_features(normalise(images, details["mean"], details["std"]))
        patches = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens[:, getattr(network, "num_prefix_tokens", 0) :]
        found = {"patches": patches}
        if classes:
            return {**found, "scores": network.forward_head(tokens).float().softmax(dim=1)}
        return {**found, "cls": network.forward_head(tokens, pre_logits=True)}

    return run


TIMM = Target("timm", "timm", (CONFIG_FILE, WEIGHTS_FILE), write, open_model)


def _usage(eps: float | None, output: str) -> str:
    epsilon = f"""
for module in model.modules():
    if isinstance(module, torch.nn.LayerNorm):
        module.eps = {eps}"""
    return f"""\
```python
import timm
import torch
from PIL import Image

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval(){"" if eps is None else epsilon}
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
pixels = transform(Image.open("photo.jpg").convert("RGB"))[None]
with torch.no_grad():
    {output} = model(pixels)  # {"logits of the classes" if output == "scores" else "one per image"}
    tokens = model.forward_features(pixels)
```
"""
