"""A folder that timm opens: `timm.create_model("local-dir:FOLDER", pretrained=True)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from asterism.finetuning.model import FinetunedModel
from asterism.finetuning.task import LinearClassifier
from asterism.images.centre_crop import usual_resize
from asterism.nn.backbone import Backbone
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.rope_vit import RopeViT
from asterism.nn.safetensors_file import write_tensors
from asterism.nn.swin import Swin
from asterism.nn.text_encoder import TextEncoder
from asterism.nn.vit import ViT
from asterism.ops.normalise import normalise
from asterism.tools.export.target import Model, Target, Written, feature_sizes

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"

# timm takes Swin weights without a classifier for those of an older layout. One of zeros is left out when it loads.
_SWIN_CLASSIFIER, _SWIN_CLASSES = "head.fc", 1


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    backbone, classifier = encoder.backbone, classifier_of(encoder)
    (folder / CONFIG_FILE).write_text(json.dumps(timm_config(encoder, classifier), indent=2) + "\n", encoding="utf-8")
    tensors = timm_tensors(encoder, classifier)
    if classifier is None and isinstance(backbone, Swin):
        tensors[f"{_SWIN_CLASSIFIER}.weight"] = torch.zeros(_SWIN_CLASSES, backbone.dim)
        tensors[f"{_SWIN_CLASSIFIER}.bias"] = torch.zeros(_SWIN_CLASSES)
    save_tensors(tensors, folder / WEIGHTS_FILE, dtype)
    eps, notes = _unusual_eps(backbone), list(notes_of(encoder, classifier))
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


def classifier_of(encoder: Encoder) -> LinearClassifier | None:
    """The classifier of a fine-tuned model, if it is one that timm has a place for."""
    return encoder.task.linear_classifier() if isinstance(encoder, FinetunedModel) else None


def sizes_of(encoder: Encoder) -> tuple[tuple[int, int], ...]:
    """The sizes of images at which timm computes the same: it resamples positions in one form."""
    backbone = encoder.backbone
    positions = getattr(backbone.network, "pos_embed", None)
    return feature_sizes(encoder, backbone.architecture.resampling == "antialiased" or positions is None)


def notes_of(encoder: Encoder, classifier: LinearClassifier | None) -> tuple[str, ...]:
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


def timm_tensors(encoder: Encoder, classifier: LinearClassifier | None) -> dict[str, Tensor]:
    """The network and its classifier under timm's names."""
    tensors = dict(encoder.backbone.network.state_dict())
    if classifier is not None:
        place = _SWIN_CLASSIFIER if isinstance(encoder.backbone, Swin) else "head"
        tensors |= {f"{place}.weight": classifier.weight, f"{place}.bias": classifier.bias}
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    halves = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    write_tensors(path, halves, {"format": "pt"})


def timm_config(encoder: Encoder, classifier: LinearClassifier | None = None) -> dict[str, Any]:
    """The network, its arguments and its preprocessing, in timm's words."""
    backbone = encoder.backbone
    pooling, classes = _pooling(backbone), _SWIN_CLASSES if isinstance(backbone, Swin) else 0
    own: dict[str, Any] = {}
    if classifier is not None:
        classes = len(classifier.classes)
        own = {"num_classes": classes}
        if classifier.takes_mean and isinstance(backbone, ViT):
            pooling = {"global_pool": "avg", "use_fc_norm" if isinstance(backbone, RopeViT) else "fc_norm": False}
    return {
        **({} if classifier is None else {"label_names": list(classifier.classes)}),
        "architecture": backbone.architecture.name.partition(".")[0],
        "num_classes": classes,  # of the file; `model_args` asks for none
        "num_features": backbone.dim,
        "global_pool": pooling["global_pool"],
        "layer_norm_eps": _unusual_eps(backbone),  # for readers: timm has no setting for it
        "model_args": {**backbone.architecture.arguments, **pooling, **own},
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [3, encoder.image_size, encoder.image_size],
            "fixed_input_size": isinstance(backbone, Swin),
            "interpolation": "bicubic",
            # `encode` crops the centre square and nothing more; classifiers see a smaller part of large images.
            "crop_pct": 1.0 if classifier is None else encoder.image_size / usual_resize(encoder.image_size),
            "crop_mode": "center",
            "mean": list(encoder.mean),
            "std": list(encoder.std),
            "num_classes": classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": _SWIN_CLASSIFIER if isinstance(backbone, Swin) else "head",
        },
    }


def _unusual_eps(backbone: Backbone) -> float | None:
    """The epsilon of its layer norms, if timm builds the network with another one."""
    import timm

    architecture = backbone.architecture
    if architecture.layer_norm_eps is None:
        return None
    with torch.device("meta"):
        usual = timm.create_model(architecture.name, **architecture.arguments)
    norms = {module.eps for module in usual.modules() if isinstance(module, nn.LayerNorm)}
    return None if norms == {architecture.layer_norm_eps} else architecture.layer_norm_eps


def _pooling(backbone: Backbone) -> Mapping[str, Any]:
    """So that calling the network gives our `cls`: the class token or the mean patch after the final norm, or the
    network's own pooling."""
    if not isinstance(backbone, ViT):
        return {"global_pool": "avg"}
    own = backbone.architecture.arguments.get("global_pool")
    if own:
        return {"global_pool": own}
    if backbone.pooling == "class":
        return {"global_pool": "token"}
    return {"global_pool": "avg", "use_fc_norm" if isinstance(backbone, RopeViT) else "fc_norm": False}


def open_model(folder: Path) -> Model:
    network = _opened(folder)
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


def _opened(folder: Path) -> Any:
    """The network, as a reader of its model card gets it."""
    import timm

    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    eps = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["layer_norm_eps"]
    for module in network.modules():
        if isinstance(module, nn.LayerNorm) and eps is not None:
            module.eps = eps
    return network


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
