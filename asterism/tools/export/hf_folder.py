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
from torch import Tensor

from asterism.images.centre_crop import usual_resize
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.ops.normalise import normalise
from asterism.tools.export.target import Model, Target, Written, needed
from asterism.tools.export.timm_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    classifier_of,
    notes_of,
    save_tensors,
    sizes_of,
    timm_config,
    timm_tensors,
)

_PREPROCESSOR = "preprocessor_config.json"
_BICUBIC = 3  # Pillow's number


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    classifier = classifier_of(encoder)
    config = timm_config(encoder, classifier)
    config["model_args"].pop("num_classes", None)  # transformers passes its own
    own = {"dtype": str(dtype).removeprefix("torch."), "asterism": _description(encoder)}
    _write_json(folder / CONFIG_FILE, config | own)
    resize = encoder.image_size if classifier is None else usual_resize(encoder.image_size)
    _write_json(folder / _PREPROCESSOR, preprocessor_config(encoder, resize))
    save_tensors(timm_tensors(encoder, classifier), folder / WEIGHTS_FILE, dtype)
    usage = _CLASSIFIER_USAGE if classifier is not None else _usage(encoder)
    notes = notes_of(encoder, classifier)
    if isinstance(encoder, ConceptEncoder):
        notes += ("maps of concepts and their decoder are left out; --to onnx keeps the maps, --to safetensors both",)
    return Written(sizes_of(encoder), notes, usage, has_head=classifier is not None)


def open_model(folder: Path) -> Model:
    config, details = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (CONFIG_FILE, _PREPROCESSOR))
    own = config["asterism"]
    network = _network(folder, labelled="label_names" in config)

    @torch.no_grad()
    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        output = network(normalise(images, details["image_mean"], details["image_std"]).to(network.dtype))
        if "label_names" in config:
            return {"scores": output.logits.float().softmax(dim=1)}
        tokens = output.last_hidden_state
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        found = {"cls": output.pooler_output, "patches": tokens[:, own["first_patch"] :]}
        if own["concepts"]:
            found["sparse"] = tokens[:, own["first_concept"] : own["first_patch"]]
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


HF = Target("hf", "transformers", (CONFIG_FILE, _PREPROCESSOR, WEIGHTS_FILE), write, open_model)


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


def _description(encoder: Encoder) -> dict[str, Any]:
    """What readers of the tokens need, in the configuration under a key that transformers keeps and ignores."""
    first = int(encoder.backbone.has_cls)
    return {
        "first_concept": first,
        "first_patch": first + encoder.backbone.registers,
        "concepts": isinstance(encoder, ConceptEncoder),
    }


def _usage(encoder: Encoder) -> str:
    first = int(encoder.backbone.has_cls)
    start = first + encoder.backbone.registers
    sliced = f"tokens[:, {start}:]" if start else "tokens"
    concepts = f"concepts = tokens[:, {first}:{start}]  # what is in the image\n"
    return f"""\
transformers opens it as a network of timm, which has to be installed; no remote code is needed.

```python
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER").eval()
with torch.no_grad():
    output = model(**processor(Image.open("photo.jpg"), return_tensors="pt"))
tokens = output.last_hidden_state
patches = {sliced}  # one vector per patch, in raster order
{concepts if isinstance(encoder, ConceptEncoder) else ""}image = output.pooler_output  # one vector per image
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


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
