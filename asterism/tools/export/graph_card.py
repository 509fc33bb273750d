"""What users of a recorded graph have to know: its inputs, outputs and sizes."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from asterism.finetuning.model import FinetunedModel
from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph
from asterism.nn.rope_vit import RopeViT

INPUT = "images"

# The tensors of `Features`; other outputs are described by the model that has them.
_MEANINGS = {
    "aligned": "one unit vector per image in the space of texts [batch, channels]",
    "cls": "one vector per image (the class token; the mean patch for networks without one) [batch, channels]",
    "patches": "one vector per patch, in raster order [batch, rows*columns, channels]",
    "sparse": "concept tokens: what is in the image [batch, concepts, channels]",
    "scores": "the probability of each class [batch, classes]",
    "where": "the share of each patch that belongs to each concept [batch, concepts, rows, columns]",
}


def describe(encoder: Encoder, graph: Graph, outputs: list[str]) -> dict[str, Any]:
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
        "interpolation": "bicubic, antialiased: shorter side to image_size, then the centre square",
        "dtype": str(graph.dtype).removeprefix("torch."),
        "outputs": {name: _MEANINGS.get(name, "") for name in outputs},
        "step": encoder.step,
        **({"classes": list(encoder.task.classes)} if isinstance(encoder, FinetunedModel) else {}),
    }


def notes_of(encoder: Encoder, graph: Graph) -> tuple[str, ...]:
    if graph.any_size:
        return ()
    size, name = graph.image_size, encoder.backbone.architecture.name
    part = "the rotary positions" if isinstance(encoder.backbone, RopeViT) else "the windows"
    return (f"only for images of {size}×{size} pixels: {part} of {name} are laid out while it is recorded",)


def inputs_and_outputs(graph: Graph, file: str, outputs: list[str]) -> str:
    """The first part of the usage section of a model card."""
    side = graph.patch_size
    if graph.any_size:
        sizes = (
            f"The number of images is free, and so are height and width as long as both are multiples of {side}; other "
            f"sizes raise an error. Positions are resampled inside the graph. It was trained for {graph.image_size}."
        )
    else:
        sizes = f"The number of images is free; height and width are {graph.image_size}, other sizes raise an error."
    lines = "\n".join(f"- `{name}`: {_MEANINGS[name]}" if name in _MEANINGS else f"- `{name}`" for name in outputs)
    return f"""\
`{file}` takes RGB images as float32 in [0, 1], shape [batch, 3, height, width], and normalises them itself: give it
pixels divided by 255 and nothing else. {sizes} Its outputs are float32:

{lines}
"""
