"""Our own encoder file, with plain timm names, in any precision: what `asterism.load` reads."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from asterism.nn.concepts import concepts_file
from asterism.nn.encoder import FILE_NAME, Encoder
from asterism.nn.weights.load import load_encoder
from asterism.tools.export.target import Model, Target, Written


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    copy.deepcopy(encoder).to(dtype).save(folder / FILE_NAME)
    return Written(any_size=True, usage=_USAGE)


def open_model(folder: Path) -> Model:
    encoder = load_encoder(folder)
    return lambda images: encoder.named_outputs(encoder.normalise(images))


SAFETENSORS = Target("safetensors", "asterism", (FILE_NAME, concepts_file(Path(FILE_NAME)).name), write, open_model)

_USAGE = """\
```python
import asterism

encoder = asterism.load("FOLDER")  # float32, whatever the precision of the file
features = encoder.encode(["photo.jpg"])
features.cls, features.patches
```

`timm.create_model(**encoder.timm_arguments)` is the plain network of these weights.
"""
