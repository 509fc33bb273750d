"""Our own encoder file, with plain timm names, in any precision: what `asterism.load` reads."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from asterism.finetuning.model import FinetunedModel, save_model
from asterism.models import load, model_files
from asterism.nn.concepts import concepts_file
from asterism.nn.encoder import FILE_NAME, Encoder
from asterism.nn.text_encoder import TextEncoder
from asterism.tools.export.target import Model, Target, Written, output_sizes


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    converted = copy.deepcopy(encoder).to(dtype)
    if isinstance(converted, FinetunedModel):
        save_model(converted.task, folder, converted.step)
        return Written(output_sizes(encoder, any_size=True), usage=_USAGE_OF_A_TASK)
    converted.save(folder / FILE_NAME)
    usage = _USAGE_WITH_TEXT if isinstance(encoder, TextEncoder) else _USAGE
    return Written(output_sizes(encoder, any_size=True), usage=usage)


def open_model(folder: Path) -> Model:
    encoder = load(folder)
    return lambda images: encoder.named_outputs(encoder.normalise(images))


SAFETENSORS = Target(
    "safetensors",
    "asterism",
    (FILE_NAME, concepts_file(Path(FILE_NAME)).name, *model_files()),
    write,
    open_model,
)

_USAGE = """\
```python
import asterism

encoder = asterism.load("FOLDER")  # float32, whatever the precision of the file
features = encoder.encode(["photo.jpg"])
features.cls, features.patches
```

`timm.create_model(**encoder.timm_arguments)` is the plain network of these weights.
"""

_USAGE_WITH_TEXT = """\
```python
import asterism

encoder = asterism.load("FOLDER")
similarity = encoder.encode(["photo.jpg"]).aligned @ encoder.encode_text(["two dogs on a beach"]).T
```

A published text tower is not part of the file; it is loaded from where it was when the images were aligned with it.
"""

_USAGE_OF_A_TASK = """\
```python
import asterism

model = asterism.load("FOLDER")
model.predict("photo.jpg")
model.encode(["photo.jpg"]).cls
```
"""
