"""From the numbers of a scene to pixels: coverage by table lookup, shading from the distance field, soft shadows.

Each thing is worked on inside its own bounding box only. Pixel (row, column) has its centre at (row + ½, column + ½).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from asterism.data.sources.scenes.layout import Scene, Thing
from asterism.data.sources.scenes.outlines import EXTENT, outlines
from asterism.data.sources.scenes.shapes import Field
from asterism.data.sources.scenes.surfaces import Background, Color
from asterism.data.sources.scenes.textures import (
    Frame,
    TileName,
    bilinear,
    clip_to_unit,
    noise,
    pattern,
    pixel_centres,
    whole_picture,
)

_BEVEL = 0.30  # width of the rounded rim, in radii
_RELIEF = 0.42  # how much brighter the rim facing the light is
_SHADOW = 0.45  # darkness of shadows
_SHADOW_LENGTH = 0.13  # in radii
_SHADOW_BLUR = 0.10  # in radii


class Picture(NamedTuple):
    """A painted scene."""

    image: UInt8[np.ndarray, "3 h w"]
    instances: UInt8[np.ndarray, "h w"]  # 0 where no thing is, else 1 + the place of what is seen in the scene's things


class _Footprint(NamedTuple):
    """Where a thing lies in the picture, and its outline at every pixel of its bounding box."""

    box: tuple[slice, slice]  # rows and columns
    pixels: float  # the radius in pixels
    frame: Frame  # the thing's own coordinates, in radii
    distance: Field  # to the silhouette, in pixels
    cover: Field  # share of each pixel that the silhouette covers
    part: Field  # share of each pixel that the second part covers, were it not cut off at the silhouette
    rise: Field  # slope of the distance towards the light


def paint(scene: Scene, size: int, least_visible: float) -> Picture:
    """Paint the scene. A thing of which less than this share of its pixels is left unhidden by others is left out."""
    instances = np.zeros((size, size), dtype=np.uint8)
    seen: list[tuple[Thing, _Footprint]] = []
    for place in scene.front_to_back:
        thing = scene.things[place]
        footprint = _footprint(thing, scene.light, size)
        if footprint is None:
            continue
        under = instances[footprint.box]
        visible = footprint.cover >= 0.5
        whole = np.count_nonzero(visible)
        visible &= under == 0
        if np.count_nonzero(visible) >= max(1.0, least_visible * whole):
            np.copyto(under, np.uint8(place + 1), where=visible)
            seen.append((thing, footprint))

    canvas = _ground(scene.background, whole_picture(size))
    for thing, footprint in reversed(seen):
        _cast_shadow(canvas, footprint, scene.light)
        _lay(canvas, thing, footprint)
    a, b = 0.3 * math.cos(scene.light), 0.3 * math.sin(scene.light)
    canvas *= whole_picture(size).linear(a, b, 1 - (a + b) / 2)  # a little brighter on the side of the light
    canvas *= 255
    canvas += 0.5
    np.minimum(canvas, 255, out=canvas)  # nothing paints below 0
    return Picture(canvas.astype(np.uint8), instances)


def _footprint(thing: Thing, light: float, size: int) -> _Footprint | None:
    """None for a thing outside the picture."""
    outline = outlines()[thing.kind][thing.variant]
    radius = thing.radius * size
    a, b, c, d = _to_picture(thing, radius)
    margin = 2 + _SHADOW_BLUR * radius
    reach_x = min(radius, abs(a) * outline.half_width + abs(b) * outline.half_height) + margin
    reach_y = min(radius, abs(c) * outline.half_width + abs(d) * outline.half_height) + margin
    left, right = max(0, math.floor(thing.x * size - reach_x)), min(size, math.ceil(thing.x * size + reach_x))
    top, bottom = max(0, math.floor(thing.y * size - reach_y)), min(size, math.ceil(thing.y * size + reach_y))
    if left >= right or top >= bottom:
        return None

    # One pixel more on every side, for differences between neighbours.
    columns, rows = pixel_centres(size)[left : right + 2], pixel_centres(size)[top : bottom + 2]
    det = a * d - b * c
    xx, xy, yx, yy = d / det, -b / det, -c / det, a / det
    x0, y0 = -(xx * thing.x + xy * thing.y) * size, -(yx * thing.x + yy * thing.y) * size
    frame = Frame(columns, rows, (xx, xy, x0), (yx, yy, y0))
    distances = bilinear(outline.table(radius), frame.moved(1 / EXTENT, 0, 1 / EXTENT, 0))
    distances *= radius
    cover, part = clip_to_unit(0.5 - distances[:, 1:-1, 1:-1])
    return _Footprint(
        (slice(top, bottom), slice(left, right)),
        radius,
        frame._replace(columns=columns[1:-1], rows=rows[1:-1]),
        distances[0, 1:-1, 1:-1],
        cover,
        part,
        _rise(distances[0], light),
    )


def _rise(distance: Field, light: float) -> Field:
    """Slope of the distance, 1 per pixel where the outline faces the light and -1 where it turns away.

    The light's direction is rounded to one of eight neighbours, which the eye does not notice on a rounded rim.
    """
    height, width = distance.shape
    right, down = round(math.cos(light)), round(math.sin(light))
    toward = distance[1 + down : height - 1 + down, 1 + right : width - 1 + right]
    away = distance[1 - down : height - 1 - down, 1 - right : width - 1 - right]
    rise = toward - away
    rise *= 0.5 / math.hypot(right, down)
    return rise


def _to_picture(thing: Thing, radius: float) -> tuple[float, float, float, float]:
    """The matrix ((a, b), (c, d)) from the thing's own frame to pixels: mirror, squeeze, turn, enlarge."""
    cos, sin = math.cos(thing.squeeze_angle), math.sin(thing.squeeze_angle)
    narrow = 1 - thing.squeeze
    xx, xy, yy = 1 - narrow * cos * cos, -narrow * cos * sin, 1 - narrow * sin * sin
    flip = -1.0 if thing.mirrored else 1.0
    cos, sin = radius * math.cos(thing.angle), radius * math.sin(thing.angle)
    return flip * (cos * xx - sin * xy), cos * xy - sin * yy, flip * (sin * xx + cos * xy), sin * xy + cos * yy


def _cast_shadow(canvas: Float[np.ndarray, "3 h w"], footprint: _Footprint, light: float) -> None:
    """Darken what lies behind, away from the light; the shadow is moved by whole pixels, as its edge is soft anyway."""
    size = canvas.shape[1]
    length = max(1.0, _SHADOW_LENGTH * footprint.pixels)
    right, down = round(-math.cos(light) * length), round(-math.sin(light) * length)
    # 1 - _SHADOW · clip(½ - distance / 2 blur), with the clipping moved outside
    shadow = footprint.distance * (_SHADOW / (2 * _SHADOW_BLUR * footprint.pixels))
    shadow += 1 - _SHADOW / 2
    np.maximum(shadow, 1 - _SHADOW, out=shadow)
    np.minimum(shadow, 1, out=shadow)
    top, left = footprint.box[0].start + down, footprint.box[1].start + right
    shadow = shadow[max(0, -top) : max(0, size - top), max(0, -left) : max(0, size - left)]
    top, left = max(0, top), max(0, left)
    canvas[:, top : top + shadow.shape[0], left : left + shadow.shape[1]] *= shadow


def _lay(canvas: Float[np.ndarray, "3 h w"], thing: Thing, footprint: _Footprint) -> None:
    """Paint the thing over the canvas: cover · shading · colour + (1 - cover) · canvas."""
    surface = thing.surface
    base, second, part = np.array((surface.base, surface.second, surface.part), dtype=np.float32)[:, :, None, None]
    brightness = _shading(footprint)
    brightness *= footprint.cover
    of_part = footprint.part * brightness
    color = base * brightness
    color += (part - base) * of_part
    if surface.pattern != "plain":
        brightness -= of_part
        brightness *= pattern(surface, footprint.frame, footprint.pixels)
        color += (second - base) * brightness
    target = canvas[:, *footprint.box]
    target *= 1 - footprint.cover
    target += color


def _shading(footprint: _Footprint) -> Field:
    """Brightness: a rounded rim that is bright towards the light, and a slight darkening at the very edge."""
    rim = footprint.distance * (1 / (_BEVEL * footprint.pixels))
    rim += 1
    np.maximum(rim, 0, out=rim)
    shading = footprint.rise * _RELIEF
    shading -= 0.12
    shading *= rim
    shading += 1.05
    return shading


def _ground(background: Background, picture: Frame) -> Float[np.ndarray, "3 size size"]:
    """The background alone, values in [0, 1]."""
    match background.ground:
        case "land":
            return _land(background, picture)
        case "gradient":
            a, b = math.cos(background.direction), math.sin(background.direction)
            share = picture.linear(0.8 * a, 0.8 * b, 0.4 - 0.4 * (a + b))
            share += 0.2 * _noise("clouds", background, picture, 0.3, 0.3)
        case _:
            scale = 0.04 * background.cycles + 0.15
            share = _noise("clouds", background, picture, scale, scale)
    return _mixed(background.low, background.high, share)


def _land(background: Background, picture: Frame) -> Float[np.ndarray, "3 size size"]:
    """A sky that pales towards the horizon, clouds in it, and rough ground below a line of hills."""
    pitch = picture.y[1]
    row = (picture.rows * pitch)[:, None]
    share = _noise("clouds", background, picture, 0.25, 0.6)
    share *= 0.5 - 0.5 * row
    share += 0.75 * row
    sky = _mixed(background.low, background.high, share)
    line = picture._replace(rows=picture.rows[:1], y=(0.0, 0.0, 0.0))
    ridge = _noise("clouds", background, line, 0.06 * background.cycles, 0.0)
    ridge *= -0.35
    depth = row + (ridge + (0.175 - background.horizon))
    red, green, blue = background.third
    ground = _mixed(background.third, (0.6 * red, 0.6 * green, 0.6 * blue), 1 - 1.1 * depth)
    rough = _noise("grain", background, picture, 0.35, 0.9)
    rough *= 0.16
    rough += 0.92
    ground *= rough
    ground -= sky
    depth /= pitch
    depth += 0.5
    ground *= clip_to_unit(depth)
    ground += sky
    return ground


def _noise(name: TileName, background: Background, picture: Frame, scale_x: float, scale_y: float) -> Field:
    """Noise that moves with the background; the scales are the parts of a tile that fill the picture."""
    frame = picture.moved(scale_x, scale_x * background.x, scale_y, scale_y * background.y)
    return noise(name, frame, max(scale_x, scale_y) * picture.x[0])


def _mixed(low: Color, high: Color, share: Field) -> Float[np.ndarray, "3 h w"]:
    start = np.array(low, dtype=np.float32)[:, None, None]
    way = (np.array(high, dtype=np.float32)[:, None, None] - start) * share
    way += start
    return way
