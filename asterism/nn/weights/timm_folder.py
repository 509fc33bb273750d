"""A folder that timm opens: `timm.create_model("local-dir:FOLDER", pretrained=True)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from asterism.images.centre_crop import usual_resize
from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.nn.rope_vit import RopeViT
from asterism.nn.swin import Swin
from asterism.nn.vit import ViT

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


# timm takes Swin weights without a classifier for those of an older layout. One of zeros is left out when it loads.
_SWIN_CLASSIFIER, _SWIN_CLASSES = "head.fc", 1


@dataclass(frozen=True)
class TimmClassifier:
    """A linear layer on timm's own pooling, and the names of its outputs."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]
    takes_mean: bool  # the mean patch instead of the network's usual vector
    classes: tuple[str, ...]


def write_timm_folder(
    encoder: Encoder, folder: Path, dtype: torch.dtype, classifier: TimmClassifier | None = None
) -> None:
    backbone = encoder.backbone
    config = timm_config(encoder, classifier)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = timm_tensors(encoder, classifier)
    if classifier is None and isinstance(backbone, Swin):
        tensors[f"{_SWIN_CLASSIFIER}.weight"] = torch.zeros(_SWIN_CLASSES, backbone.dim)
        tensors[f"{_SWIN_CLASSIFIER}.bias"] = torch.zeros(_SWIN_CLASSES)
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})


def timm_tensors(encoder: Encoder, classifier: TimmClassifier | None) -> dict[str, Tensor]:
    """The network and its classifier under timm's names."""
    tensors = dict(encoder.backbone.network.state_dict())
    if classifier is not None:
        place = _SWIN_CLASSIFIER if isinstance(encoder.backbone, Swin) else "head"
        tensors |= {f"{place}.weight": classifier.weight, f"{place}.bias": classifier.bias}
    return tensors


def open_timm_folder(folder: Path) -> Any:
    """The network, as a reader of its model card gets it."""
    import timm

    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    eps = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["layer_norm_eps"]
    for module in network.modules():
        if isinstance(module, nn.LayerNorm) and eps is not None:
            module.eps = eps
    return network


def timm_config(encoder: Encoder, classifier: TimmClassifier | None = None) -> dict[str, Any]:
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
        "layer_norm_eps": unusual_eps(backbone),  # for readers: timm has no setting for it
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


def unusual_eps(backbone: Backbone) -> float | None:
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
