"""ONNX: one graph with normalisation, network and heads, for any number of images and, for ViTs, of any size."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.finetuning.model import FinetunedModel
from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph, recording
from asterism.nn.rope_vit import RopeViT
from asterism.tools.export.model_card import preprocessing_of
from asterism.tools.export.target import Model, Target, Written, needed, output_sizes

INPUT = "images"
_FILE, _WEIGHTS_FILE = "model.onnx", "model.onnx.data"
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes of one file, less room for the graph itself
_GRID = {2: "rows", 3: "columns"}  # axes of the input, in patches
_OUTPUT_AXES = {"patches": {1: "rows*columns"}, "where": _GRID}  # which the exporter leaves anonymous
_SHOWN = 30  # classes that are listed

# The tensors of `Features`; other outputs are described by the task that has them.
_FEATURES = {
    "aligned": "one unit vector per image in the space of texts [batch, channels]",
    "cls": "one vector per image (the class token; the mean patch for networks without one) [batch, channels]",
    "patches": "one vector per patch, in raster order [batch, rows*columns, channels]",
    "sparse": "concept tokens: what is in the image [batch, concepts, channels]",
    "where": "the share of each patch that belongs to each concept [batch, concepts, rows, columns]",
}


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    for package in ("onnx", "onnxscript", "onnxruntime"):  # to write, to translate, to check
        needed(package)
    if dtype == torch.bfloat16:
        raise UserError("onnxruntime does not run bfloat16 networks on CPUs; use --dtype float16")
    graph = Graph(encoder, dtype)
    program, outputs = _program(graph)
    described = _describe(encoder, graph, outputs)
    program.model.metadata_props.update(
        {name: value if isinstance(value, str) else json.dumps(value) for name, value in described.items()}
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    program.save(folder / _FILE, external_data=size > _PROTOBUF_LIMIT)
    sizes = output_sizes(encoder, graph.any_size)
    return Written(sizes, _notes(encoder, graph), _usage(encoder, graph, outputs))


def open_model(folder: Path) -> Model:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # by default it would use all cores of the machine
    session = runtime.InferenceSession(folder / _FILE, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        outputs = session.run(names, {INPUT: images.numpy()})
        return {name: torch.from_numpy(output) for name, output in zip(names, outputs, strict=True)}

    return run


ONNX = Target("onnx", "onnx", (_FILE, _WEIGHTS_FILE), write, open_model)


def _program(graph: Graph) -> tuple[Any, list[str]]:
    """The recorded graph with our names for input, outputs and their axes; and the names of the outputs."""
    example = graph.example()
    axes: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if graph.canvas is not None:
        for axis, (name, most) in enumerate(zip(("height", "width"), graph.canvas, strict=True), start=2):
            axes[axis] = torch.export.Dim(name, min=1, max=most)
    elif graph.any_size:
        axes |= {axis: graph.patch_size * torch.export.Dim(name, min=1) for axis, name in _GRID.items()}
    with recording(), _quiet():
        outputs = list(graph(example))
        program: Any = torch.onnx.export(
            graph, (example,), dynamo=True, dynamic_shapes=(axes,), input_names=[INPUT], verbose=False
        )
    for node in program.model.graph:
        node.metadata_props.clear()  # the exporter's call stacks, with paths of this machine
        for value in node.outputs:
            value.metadata_props.clear()
            if value.name in outputs:
                value.name += "_inner"  # names are unique: `where` is also an operator's result
    for name, value in zip(outputs, program.model.graph.outputs, strict=True):
        value.name = name
        named = _OUTPUT_AXES.get(name, {}) if graph.any_size else {}
        value.shape = type(value.shape)([named.get(axis, size) for axis, size in enumerate(value.shape)])
    return program, outputs


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about parts of torch and of the exporter that we do not call."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _usage(encoder: Encoder, graph: Graph, outputs: list[str]) -> str:
    height, width = graph.only_size
    return f"""\
{_inputs_and_outputs(encoder, graph, outputs)}
```python
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession("{_FILE}")
image = Image.open("photo.jpg").convert("RGB").resize({(width, height)}, Image.BICUBIC)
images = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
names = {outputs}
outputs = dict(zip(names, session.run(names, {{"{INPUT}": images}})))
```
"""


def _describe(encoder: Encoder, graph: Graph, outputs: list[str]) -> dict[str, Any]:
    """For the file's own metadata. The statistics are those that the graph applies."""
    return {
        "asterism_version": metadata.version("asterism"),
        "architecture": encoder.backbone.architecture.name,
        "input": "RGB float32 in [0, 1], [batch, 3, height, width]; normalised inside the graph",
        "mean": list(encoder.mean),
        "std": list(encoder.std),
        "image_size": graph.image_size,
        "patch_size": graph.patch_size,
        "any_size": graph.any_size,
        **({} if graph.canvas is None else {"largest_size": list(graph.canvas)}),
        "preprocessing": preprocessing_of(encoder, encoder.task if isinstance(encoder, FinetunedModel) else None),
        "dtype": str(graph.dtype).removeprefix("torch."),
        "outputs": {name: _meanings(encoder).get(name, "") for name in outputs},
        "step": encoder.step,
        **({"classes": list(encoder.task.classes)} if isinstance(encoder, FinetunedModel) else {}),
    }


def _notes(encoder: Encoder, graph: Graph) -> tuple[str, ...]:
    if graph.any_size:
        return ()
    if graph.canvas is not None:
        height, width = graph.canvas
        return (f"for images of up to {height}×{width} pixels (height × width): inside, they are padded to that size",)
    size, name = graph.image_size, encoder.backbone.architecture.name
    part = "the rotary positions" if isinstance(encoder.backbone, RopeViT) else "the windows"
    return (f"only for images of {size}×{size} pixels: {part} of {name} are laid out while it is recorded",)


def _inputs_and_outputs(encoder: Encoder, graph: Graph, outputs: list[str]) -> str:
    """The first part of the usage section of a model card."""
    side = graph.patch_size
    if graph.canvas is not None:
        height, width = graph.canvas
        sizes = (
            f"The number of images is free. Their height is at most {height} and their width at most {width}: inside, "
            "they are padded to that size, as in training. Larger ones raise an error."
        )
    elif graph.any_size:
        sizes = (
            f"The number of images is free, and so are height and width as long as both are multiples of {side}; other "
            f"sizes raise an error. Positions are resampled inside the graph. It was trained for {graph.image_size}."
        )
    else:
        sizes = f"The number of images is free; height and width are {graph.image_size}, other sizes raise an error."
    meanings = _meanings(encoder)
    lines = "\n".join(f"- `{name}`: {meanings[name]}" if name in meanings else f"- `{name}`" for name in outputs)
    return f"""\
`{_FILE}` takes RGB images as float32 in [0, 1], shape [batch, 3, height, width], and normalises them itself: give it
pixels divided by 255 and nothing else. {sizes} Its outputs are float32, labels are int64:

{lines}
{_classes(encoder)}"""


def _meanings(encoder: Encoder) -> Mapping[str, str]:
    return {**_FEATURES, **encoder.task.meanings} if isinstance(encoder, FinetunedModel) else _FEATURES


def _classes(encoder: Encoder) -> str:
    if not isinstance(encoder, FinetunedModel):
        return ""
    names = encoder.task.classes
    shown = ", ".join(f"{place} {name}" for place, name in enumerate(names[:_SHOWN]))
    return f"\nClasses: {shown}{' …' if len(names) > _SHOWN else ''}; all names are in the metadata of the file.\n"
