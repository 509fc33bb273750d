"""What users of a recorded graph have to know: its inputs, outputs and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from asterism.finetuning.model import FinetunedModel
from asterism.finetuning.task import Task
from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph
from asterism.nn.rope_vit import RopeViT

INPUT = "images"

_SHOWN = 30  # classes that are listed

# The tensors of `Features`; other outputs are described by the task that has them.
_FEATURES = {
    "aligned": "one unit vector per image in the space of texts [batch, channels]",
    "cls": "one vector per image (the class token; the mean patch for networks without one) [batch, channels]",
    "patches": "one vector per patch, in raster order [batch, rows*columns, channels]",
    "sparse": "concept tokens: what is in the image [batch, concepts, channels]",
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
        **({} if graph.canvas is None else {"largest_size": list(graph.canvas)}),
        "preprocessing": preprocessing_of(encoder, encoder.task if isinstance(encoder, FinetunedModel) else None),
        "dtype": str(graph.dtype).removeprefix("torch."),
        "outputs": {name: _meanings(encoder).get(name, "") for name in outputs},
        "step": encoder.step,
        **({"classes": list(encoder.task.classes)} if isinstance(encoder, FinetunedModel) else {}),
    }


def notes_of(encoder: Encoder, graph: Graph) -> tuple[str, ...]:
    if graph.any_size:
        return ()
    if graph.canvas is not None:
        height, width = graph.canvas
        return (f"for images of up to {height}×{width} pixels (height × width): inside, they are padded to that size",)
    size, name = graph.image_size, encoder.backbone.architecture.name
    part = "the rotary positions" if isinstance(encoder.backbone, RopeViT) else "the windows"
    return (f"only for images of {size}×{size} pixels: {part} of {name} are laid out while it is recorded",)


def inputs_and_outputs(encoder: Encoder, graph: Graph, file: str, outputs: list[str]) -> str:
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
`{file}` takes RGB images as float32 in [0, 1], shape [batch, 3, height, width], and normalises them itself: give it
pixels divided by 255 and nothing else. {sizes} Its outputs are float32, labels are int64:

{lines}
{_classes(encoder)}"""


def preprocessing_of(encoder: Encoder, task: Task | None) -> str:
    """What `predict` of a task, or else `encode`, does to an image before it is normalised."""
    if task is not None:
        return task.preprocessing
    return f"shorter side to {encoder.image_size} (bicubic, antialiased), then the centre square"


def fitting_size(encoder: Encoder) -> tuple[int, int]:
    """Width and height to which the example of a card resizes its photograph, as Pillow counts."""
    height, width = encoder.canvas or (encoder.image_size, encoder.image_size)
    return width, height


def _meanings(encoder: Encoder) -> Mapping[str, str]:
    return {**_FEATURES, **encoder.task.meanings} if isinstance(encoder, FinetunedModel) else _FEATURES


def _classes(encoder: Encoder) -> str:
    if not isinstance(encoder, FinetunedModel):
        return ""
    names = encoder.task.classes
    shown = ", ".join(f"{place} {name}" for place, name in enumerate(names[:_SHOWN]))
    return f"\nClasses: {shown}{' …' if len(names) > _SHOWN else ''}; all names are in the metadata of the file.\n"
