"""TorchScript: one file that torch alone opens, in Python and C++, for any number of images and, for ViTs, any size."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path

import torch

from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph, recording
from asterism.tools.export.graph_card import describe, fitting_size, inputs_and_outputs, notes_of
from asterism.tools.export.target import Model, Target, Written, output_sizes

_FILE = "model.pt"
_DESCRIPTION = "asterism.json"  # a file inside the archive


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    graph = Graph(encoder, dtype)
    example = graph.example()
    with recording(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers torch.export, whose files need the same version of torch
        outputs = list(graph(example))
        recorded = torch.jit.trace(graph, (example,), strict=False, check_trace=False)  # type: ignore[no-untyped-call]
        description = json.dumps(describe(encoder, graph, outputs))
        archive = io.BytesIO()  # torch's own writer of files aborts the process when the disk is full
        torch.jit.save(recorded, archive, {_DESCRIPTION: description})
        _copy_without_sources(archive, folder / _FILE)
    sizes = output_sizes(encoder, graph.any_size)
    with_torchvision = "torchvision::" in str(recorded.inlined_graph)
    return Written(sizes, notes_of(encoder, graph), _usage(encoder, graph, outputs, with_torchvision))


def open_model(folder: Path) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(folder / _FILE, map_location="cpu")  # type: ignore[no-untyped-call]


def _copy_without_sources(archive: io.BytesIO, target: Path) -> None:
    """Leave out what only serves debugging: the places in our source files, with paths of this machine."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                new.writestr(entry.filename, old.read(entry))


TORCHSCRIPT = Target("torchscript", "pytorch", (_FILE,), write, open_model)


def _usage(encoder: Encoder, graph: Graph, outputs: list[str], with_torchvision: bool) -> str:
    needed = "torch and torchvision are" if with_torchvision else "torch is"
    operators = "import torchvision  # has operators of the graph\n" if with_torchvision else ""
    return f"""\
{inputs_and_outputs(encoder, graph, _FILE, outputs)}
They come as a dictionary. Only {needed} needed.

```python
import numpy as np
import torch
{operators}from PIL import Image

model = torch.jit.load("{_FILE}", map_location="cpu")  # or "cuda", "mps"
image = Image.open("photo.jpg").convert("RGB").resize({fitting_size(encoder)}, Image.BICUBIC)
images = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)[None]
with torch.no_grad():
    features = model(images)
print({{name: tuple(tensor.shape) for name, tensor in features.items()}})
```

Its description (statistics, sizes, outputs) is stored inside: `files = {{"{_DESCRIPTION}": ""}}`, then
`torch.jit.load("{_FILE}", _extra_files=files)`.
"""
