"""What the name of a timm model says about a file of its weights."""

from __future__ import annotations

from asterism.nn.weights.description import Description
from asterism.ops.normalise import Triple


def named_description(name: str, dim: int) -> tuple[Description, Description]:
    """What the name states, and what is likely: without a tag (`name.tag`), weights of a model may differ in pixels.

    dim: the width of the weights, which may be another than the named model's; its heads then say nothing.
    """
    from asterism.nn.timm_models import network_outline, pixel_settings

    outline = network_outline(name)
    heads = outline.heads if outline.dim == dim else None
    settings = pixel_settings(name)
    pixels = {(each.mean, each.std) for each in settings}
    if not settings:
        return Description(heads=heads), Description()
    first = settings[0]
    stated = Description(heads=heads, image_size=first.image_size)
    likely = Description(mean=_rgb(first.mean), std=_rgb(first.std))
    return (likely.over(stated), Description()) if len(pixels) == 1 else (stated, likely)


def _rgb(values: tuple[float, ...]) -> Triple:
    red, green, blue = values
    return red, green, blue
