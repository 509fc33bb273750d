"""A Hugging Face folder: `AutoModel` and `AutoImageProcessor` open it without code of ours.

It is a timm folder in the form that transformers reads: there, timm's networks are a model class of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from asterism.images.centre_crop import usual_resize
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.weights.timm_folder import CONFIG_FILE, WEIGHTS_FILE, timm_config, timm_tensors
from asterism.ops.normalise import normalise
from asterism.tools.export.target import Model, Target, Written, needed
from asterism.tools.export.timm_folder import classifier_of, notes_of, sizes_of

_PREPROCESSOR = "preprocessor_config.json"
_CONCEPTS = "concepts.safetensors"  # what a timm network has no place for: the layers that locate concepts
_BICUBIC = 3  # Pillow's number


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    classifier, localization = classifier_of(encoder), _localization(encoder)
    config = timm_config(encoder, classifier)
    config["model_args"].pop("num_classes", None)  # transformers passes its own
    own = {"dtype": str(dtype).removeprefix("torch."), "asterism": _description(encoder, localization)}
    _write_json(folder / CONFIG_FILE, config | own)
    resize = encoder.image_size if classifier is None else usual_resize(encoder.image_size)
    _write_json(folder / _PREPROCESSOR, preprocessor_config(encoder, resize))
    _save(timm_tensors(encoder, classifier), folder / WEIGHTS_FILE, dtype)
    if localization is not None:
        _save(localization.state_dict(), folder / _CONCEPTS, dtype)
    usage = _CLASSIFIER_USAGE if classifier is not None else _usage(encoder, localization)
    notes = notes_of(encoder, classifier)
    if isinstance(encoder, ConceptEncoder) and encoder.reconstruction is not None:
        notes += ("the decoder, which makes images from concepts, is left out; --to safetensors keeps it",)
    return Written(sizes_of(encoder), notes, usage, has_head=classifier is not None)


def open_model(folder: Path) -> Model:
    config, details = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (CONFIG_FILE, _PREPROCESSOR))
    own = config["asterism"]
    network = _network(folder, labelled="label_names" in config)
    first, localization = own["first_concept"], None
    if own["temperature"] is not None:
        localization = Localization(config["num_features"], own["temperature"]).to(network.dtype)
        localization.load_state_dict(load_file(folder / _CONCEPTS))

    @torch.no_grad()
    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        output = network(normalise(images, details["image_mean"], details["image_std"]).to(network.dtype))
        if "label_names" in config:
            return {"scores": output.logits.float().softmax(dim=1)}
        tokens = output.last_hidden_state
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        sparse, patches = tokens[:, first : own["first_patch"]], tokens[:, own["first_patch"] :]
        found = {"cls": output.pooler_output, "patches": patches}
        if own["concepts"]:
            found["sparse"] = sparse
        if localization is not None:
            rows = images.shape[2] // own["patch_size"]
            found["where"] = localization(patches, sparse).mT.unflatten(2, (rows, -1))
        return {name: tensor.float() for name, tensor in found.items()}

    return run


def _network(folder: Path, labelled: bool) -> Any:
    """The model, without the library's progress bar and remarks."""
    transformers = needed("transformers")
    messages = transformers.utils.logging
    shown, level = messages.is_progress_bar_enabled(), messages.get_verbosity()
    messages.disable_progress_bar()
    messages.set_verbosity_error()
    try:
        kind = transformers.AutoModelForImageClassification if labelled else transformers.AutoModel
        return kind.from_pretrained(folder, dtype="auto").eval()
    finally:
        messages.set_verbosity(level)
        if shown:
            messages.enable_progress_bar()


HF = Target("hf", "transformers", (CONFIG_FILE, _PREPROCESSOR, WEIGHTS_FILE, _CONCEPTS), write, open_model)


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


def _description(encoder: Encoder, localization: Localization | None) -> dict[str, Any]:
    """What readers of the tokens need, in the configuration under a key that transformers keeps and ignores."""
    first = int(encoder.backbone.has_cls)
    return {
        "first_concept": first,
        "first_patch": first + encoder.backbone.registers,
        "patch_size": encoder.patch_size,
        "concepts": isinstance(encoder, ConceptEncoder),
        "temperature": None if localization is None else localization.temperature,
    }


def _usage(encoder: Encoder, localization: Localization | None) -> str:
    first, start = int(encoder.backbone.has_cls), int(encoder.backbone.has_cls) + encoder.backbone.registers
    text, imports = (
        "transformers opens it as a network of timm, which has to be installed; no remote code is needed.",
        "",
    )
    patches = f"tokens[:, {start}:]" if start else "tokens"
    lines = [
        f"patches = {patches}  # one vector per patch, in raster order",
        "image = output.pooler_output  # one vector per image",
    ]
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
        text += f" `{_CONCEPTS}` has the two layers that locate concepts, which a network of timm has no place for."
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
    output = model(**processor(Image.open("photo.jpg"), return_tensors="pt"))
tokens = output.last_hidden_state
{code}
```
"""


_CLASSIFIER_USAGE = """\
transformers opens it as a network of timm, which has to be installed; no remote code is needed.

```python
from PIL import Image
from transformers import pipeline

classify = pipeline("image-classification", "FOLDER")
print(classify(Image.open("photo.jpg")))
```
"""


def _save(tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in tensors.items()}, path)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
