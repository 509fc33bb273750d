"""A Hugging Face folder: `AutoModel` and `AutoImageProcessor` open it as a native class, without code of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from asterism.finetuning.model import FinetunedModel
from asterism.images.centre_crop import usual_resize
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.text_encoder import TextEncoder
from asterism.nn.vit import ViT
from asterism.nn.weights.to_transformers import NativeModel, native_model, with_classifier
from asterism.tools.export.target import Model, Target, Written, feature_sizes, needed

_CONFIG, _PREPROCESSOR, _WEIGHTS = "config.json", "preprocessor_config.json", "model.safetensors"
_CONCEPTS = "concepts.safetensors"  # what native classes have no place for: the layers that locate concepts
_BICUBIC = 3  # Pillow's number


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    native, left_out = _with_head(encoder, native_model(encoder.backbone))
    concepts = _localization(encoder)
    precision = str(dtype).removeprefix("torch.")
    _write_json(folder / _CONFIG, {**native.config, "dtype": precision, "asterism": _description(encoder, concepts)})
    with_classes = native.config["architectures"][0].endswith("ForImageClassification")
    resize = usual_resize(encoder.image_size) if with_classes else encoder.image_size
    _write_json(folder / _PREPROCESSOR, preprocessor_config(encoder, resize))
    _save(native.tensors, folder / _WEIGHTS, dtype)
    if concepts is not None:
        _save(concepts.state_dict(), folder / _CONCEPTS, dtype)
    notes = (*native.notes, *_notes(encoder), *left_out)
    usage = _usage(encoder, native, concepts)
    return Written(feature_sizes(encoder, native.any_size), notes, usage, has_head=not left_out)


def _with_head(encoder: Encoder, native: NativeModel) -> tuple[NativeModel, tuple[str, ...]]:
    """The model with the classifier of a fine-tuned one, or a note that it is left out."""
    if not isinstance(encoder, FinetunedModel):
        return native, ()
    linear = encoder.task.linear_classifier()
    mean = linear is not None and (linear.takes_mean or _pooling(encoder) == "mean")
    full = None if linear is None else with_classifier(native, linear.weight, linear.bias, mean, linear.classes)
    if full is None:
        name = native.config["architectures"][0]
        note = f"the head is left out: {name} has no place for it; --to onnx, torchscript and safetensors keep it"
        return native, (note,)
    return full, ()


def open_model(folder: Path) -> Model:
    network = _network(folder)
    if type(network).__name__.endswith("ForImageClassification"):
        return _scores(folder, network)
    details = json.loads((folder / _PREPROCESSOR).read_text(encoding="utf-8"))
    own = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))["asterism"]
    mean, std = (torch.tensor(details[name])[:, None, None] for name in ("image_mean", "image_std"))
    file, localization = folder / _CONCEPTS, None
    if own["temperature"] is not None:
        localization = Localization(network.config.hidden_size, own["temperature"]).to(network.dtype)
        localization.load_state_dict(load_file(file))
    first, extra = int(own["class_token"]), own["registers"]

    @torch.no_grad()
    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        options = {"interpolate_pos_encoding": True} if network.config.model_type == "siglip_vision_model" else {}
        output = network(((images - mean) / std).to(network.dtype), **options)
        tokens = output.last_hidden_state
        patches, sparse = tokens[:, first + extra :], tokens[:, first : first + extra]
        found = {"cls": tokens[:, 0] if own["pooling"] == "class" else patches.mean(dim=1), "patches": patches}
        if own["concepts"]:
            found["sparse"] = sparse
        if localization is not None:
            rows = images.shape[2] // own["patch_size"]
            found["where"] = localization(patches, sparse).mT.unflatten(2, (rows, -1))
        return {name: tensor.float() for name, tensor in found.items()}

    return run


def _scores(folder: Path, network: Any) -> Model:
    details = json.loads((folder / _PREPROCESSOR).read_text(encoding="utf-8"))
    mean, std = (torch.tensor(details[name])[:, None, None] for name in ("image_mean", "image_std"))

    @torch.no_grad()
    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        logits = network(((images - mean) / std).to(network.dtype)).logits
        return {"scores": logits.float().softmax(dim=1)}

    return run


def _network(folder: Path) -> Any:
    """The model, without the library's progress bar."""
    transformers = needed("transformers")
    messages = transformers.utils.logging
    shown = messages.is_progress_bar_enabled()
    messages.disable_progress_bar()
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        labelled = config["architectures"][0].endswith("ForImageClassification")
        kind = transformers.AutoModelForImageClassification if labelled else transformers.AutoModel
        return kind.from_pretrained(folder, dtype="auto").eval()
    finally:
        if shown:
            messages.enable_progress_bar()


HF = Target("hf", "transformers", (_CONFIG, _PREPROCESSOR, _WEIGHTS, _CONCEPTS), write, open_model)


def preprocessor_config(encoder: Encoder, resize: int) -> dict[str, Any]:
    """What `encode` or `predict` does to an image: shorter side to `resize`, centre square, normalisation."""
    size = encoder.image_size
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": resize},
        "resample": _BICUBIC,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(encoder.mean),
        "image_std": list(encoder.std),
    }


def _localization(encoder: Encoder) -> Localization | None:
    return encoder.localization if isinstance(encoder, ConceptEncoder) else None


def _pooling(encoder: Encoder) -> str:
    return encoder.backbone.pooling if isinstance(encoder.backbone, ViT) else "mean"


def _description(encoder: Encoder, localization: Localization | None) -> dict[str, Any]:
    """What readers of the tokens need, in the configuration under a key that transformers keeps and ignores."""
    return {
        "class_token": encoder.backbone.has_cls,
        "pooling": _pooling(encoder),
        "registers": encoder.backbone.registers,
        "patch_size": encoder.patch_size,
        "concepts": isinstance(encoder, ConceptEncoder),
        "temperature": None if localization is None else localization.temperature,
    }


def _notes(encoder: Encoder) -> tuple[str, ...]:
    notes = []
    if isinstance(encoder.backbone, ViT) and _pooling(encoder) == "mean":
        notes.append("an image's vector is the mean of its patches, not pooler_output")
    if isinstance(encoder, ConceptEncoder) and encoder.reconstruction is not None:
        notes.append("the decoder, which makes images from concepts, is left out; --to safetensors keeps it")
    if isinstance(encoder, TextEncoder):
        notes.append("the probe that aligns it with text is left out; --to safetensors, onnx and torchscript keep it")
    return tuple(notes)


def _usage(encoder: Encoder, native: NativeModel, localization: Localization | None) -> str:
    if native.config["architectures"][0].endswith("ForImageClassification"):
        return _CLASSIFIER_USAGE
    first, extra = int(encoder.backbone.has_cls), encoder.backbone.registers
    start = first + extra
    patches = f"tokens[:, {start}:]" if start else "tokens"
    imports = ""
    lines = [f"patches = {patches}  # one vector per patch, in raster order"]
    lines.append(
        "image = tokens[:, 0]  # one vector per image"
        if _pooling(encoder) == "class"
        else "image = patches.mean(dim=1)"
    )
    text = "It is a native class of transformers (" + native.config["architectures"][0] + "); no remote code is needed."
    if isinstance(encoder, ConceptEncoder):
        lines.append(f"concepts = tokens[:, {first}:{start}]  # what is in the image")
    if localization is not None:
        lines += [
            "",
            "# where each concept is: the share of every patch that belongs to it",
            f'parts = load_file("FOLDER/{_CONCEPTS}")',
            "dense, sparse = (",
            '    F.normalize(F.linear(x, parts[f"{name}.weight"], parts[f"{name}.bias"]), dim=-1)',
            '    for name, x in (("dense", patches), ("sparse", concepts))',
            ")",
            f"where = (dense @ sparse.mT / {localization.temperature}).softmax(dim=-1)  # [images, patches, concepts]",
        ]
        text += f" `{_CONCEPTS}` has the two layers that locate concepts, which transformers has no place for."
        imports = "from safetensors.torch import load_file\nfrom torch.nn import functional as F\n"
    code = "\n".join(lines)
    return f"""\
{text}

```python
import torch
from PIL import Image
{imports}from transformers import AutoImageProcessor, AutoModel

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER").eval()
with torch.no_grad():
    tokens = model(**processor(Image.open("photo.jpg"), return_tensors="pt")).last_hidden_state
{code}
```
"""


_CLASSIFIER_USAGE = """\
It is a native class of transformers; no remote code is needed.

```python
from PIL import Image
from transformers import pipeline

classify = pipeline("image-classification", "FOLDER")
print(classify(Image.open("photo.jpg")))
```
"""


def _save(tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    # `contiguous` alone would keep parts of a fused tensor on shared storage, which the format refuses.
    own = {name: tensor.detach().to(dtype).clone().contiguous() for name, tensor in tensors.items()}
    save_file(own, path, {"format": "pt"})


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
