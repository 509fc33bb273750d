"""What lies behind the things: gradients, clouds, and landscapes with a horizon. Patterns are left to the things."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from asterism.data.sources.scenes.distance import Field
from asterism.data.sources.scenes.lookup import Frame, clip_to_unit, pixel_centres
from asterism.data.sources.scenes.surfaces import Color
from asterism.data.sources.scenes.tiles import TileName, noise

GROUNDS = ("gradient", "clouds", "land", "land")  # land twice: it varies most


@dataclass(frozen=True, slots=True)
class Background:
    """One background; lengths are in sides of the picture."""

    ground: str
    low: Color
    high: Color
    third: Color
    direction: float  # of gradients, radians
    cycles: float  # how often clouds and hills repeat over the picture
    horizon: float  # height of the land's horizon, from the top
    x: float  # where the picture looks in the endless background
    y: float


def paint(background: Background, size: int) -> Float[np.ndarray, "3 {size} {size}"]:
    """The background alone, values in [0, 1]."""
    centres = pixel_centres(size)[1:-1]
    picture = Frame(centres, centres, xx=1 / size, yy=1 / size)
    if background.ground == "land":
        return _land(background, picture)
    return _mixed(background.low, background.high, _share(background, picture))


def _share(background: Background, picture: Frame) -> Field:
    """Share of the colour `high` at every pixel."""
    match background.ground:
        case "gradient":
            a, b = math.cos(background.direction), math.sin(background.direction)
            share = picture.linear(0.8 * a, 0.8 * b, 0.4 - 0.4 * (a + b))
            share += 0.2 * _noise("clouds", background, picture, 0.3, 0.3)
            return share
        case "clouds":
            scale = 0.04 * background.cycles + 0.15
            return _noise("clouds", background, picture, scale, scale)
        case other:
            raise AssertionError(other)


def _land(background: Background, picture: Frame) -> Float[np.ndarray, "3 size size"]:
    """A sky that pales towards the horizon, clouds in it, and rough ground below a line of hills."""
    row = (picture.rows * picture.yy)[:, None]
    share = _noise("clouds", background, picture, 0.25, 0.6)
    share *= 0.5 - 0.5 * row
    share += 0.75 * row
    sky = _mixed(background.low, background.high, share)
    ridge = _noise("clouds", background, picture._replace(rows=picture.rows[:1], yy=0.0), 0.06 * background.cycles, 0.0)
    ridge *= -0.35
    depth = row + (ridge + (0.175 - background.horizon))
    ground = _mixed(background.third, _darker(background.third), 1 - 1.1 * depth)
    rough = _noise("grain", background, picture, 0.35, 0.9)
    rough *= 0.16
    rough += 0.92
    ground *= rough
    ground -= sky
    depth /= picture.yy
    depth += 0.5
    ground *= clip_to_unit(depth)
    ground += sky
    return ground


def _noise(name: TileName, background: Background, picture: Frame, scale_x: float, scale_y: float) -> Field:
    """Noise that moves with the background; the scales are the parts of a tile that fill the picture."""
    frame = picture.moved(scale_x, scale_x * background.x, scale_y, scale_y * background.y)
    return noise(name, frame, max(scale_x, scale_y) * picture.xx)


def _mixed(low: Color, high: Color, share: Field) -> Float[np.ndarray, "3 h w"]:
    start = np.array(low, dtype=np.float32)[:, None, None]
    way = (np.array(high, dtype=np.float32)[:, None, None] - start) * share
    way += start
    return way


def _darker(color: Color) -> Color:
    return 0.6 * color[0], 0.6 * color[1], 0.6 * color[2]
