"""ONNX: one graph with normalisation, network and heads, for any number of images and, for ViTs, of any size."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph, recording
from asterism.tools.export.graph_card import INPUT, describe, fitting_size, inputs_and_outputs, notes_of
from asterism.tools.export.target import Model, Target, Written, needed, output_sizes

_FILE, _WEIGHTS_FILE = "model.onnx", "model.onnx.data"
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes of one file, less room for the graph itself
_GRID = {2: "rows", 3: "columns"}  # axes of the input, in patches
_OUTPUT_AXES = {"patches": {1: "rows*columns"}, "where": _GRID}  # which the exporter leaves anonymous


def write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    for package in ("onnx", "onnxscript", "onnxruntime"):  # to write, to translate, to check
        needed(package)
    if dtype == torch.bfloat16:
        raise UserError("onnxruntime does not run bfloat16 networks on CPUs; use --dtype float16, or --to torchscript")
    graph = Graph(encoder, dtype)
    program, outputs = _program(graph)
    described = describe(encoder, graph, outputs)
    program.model.metadata_props.update(
        {name: value if isinstance(value, str) else json.dumps(value) for name, value in described.items()}
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    program.save(folder / _FILE, external_data=size > _PROTOBUF_LIMIT)
    sizes = output_sizes(encoder, graph.any_size)
    return Written(sizes, notes_of(encoder, graph), _usage(encoder, graph, outputs))


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
    return f"""\
{inputs_and_outputs(encoder, graph, _FILE, outputs)}
```python
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession("{_FILE}")
image = Image.open("photo.jpg").convert("RGB").resize({fitting_size(encoder)}, Image.BICUBIC)
images = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
names = {outputs}
outputs = dict(zip(names, session.run(names, {{"{INPUT}": images}})))
```
"""
