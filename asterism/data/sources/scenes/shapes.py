"""The kinds of things in a scene: outlines as signed distance fields, with what varies within a class.

A kind is a function of random draws and of points of the plane; the y axis points down. It returns the distance to the
silhouette, negative inside, and to its second part (a roof, an eye, a trunk), which is painted in a colour of its own.
Proportions vary within a class. The layout chooses place, size, turn, squeeze, colour and texture: the shape alone
makes the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from asterism.data.sources.scenes.draws import Draws

Field: TypeAlias = Float[np.ndarray, "..."]  # a number for every point
Figure: TypeAlias = tuple[Field, Field]


def disc(x: Field, y: Field, cx: float, cy: float, radius: float) -> Field:
    return np.hypot(x - cx, y - cy) - radius


def ellipse(x: Field, y: Field, cx: float, cy: float, rx: float, ry: float) -> Field:
    """First-order distance, f / |∇f| of the implicit ellipse: exact on the boundary, enough for a soft edge."""
    u, v = (x - cx) / rx, (y - cy) / ry
    radius = np.hypot(u, v)
    slope = np.hypot(u / rx, v / ry)
    return radius * (radius - 1) / np.maximum(slope, 1e-6)


def box(x: Field, y: Field, cx: float, cy: float, half_width: float, half_height: float, corner: float = 0.0) -> Field:
    """A rectangle whose corners are rounded with radius `corner`."""
    u = np.abs(x - cx) - (half_width - corner)
    v = np.abs(y - cy) - (half_height - corner)
    outside = np.hypot(np.maximum(u, 0), np.maximum(v, 0))
    return outside + np.minimum(np.maximum(u, v), 0) - corner


def bar(x: Field, y: Field, ax: float, ay: float, bx: float, by: float, radius: float) -> Field:
    """A thick line from a to b with round ends."""
    dx, dy = bx - ax, by - ay
    along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
    return np.hypot(x - ax - along * dx, y - ay - along * dy) - radius


def polygon(x: Field, y: Field, corners: Sequence[tuple[float, float]]) -> Field:
    """Distance to the nearest side; the sign is the parity of the sides that a ray towards +x crosses."""
    nearest = np.full(np.broadcast_shapes(x.shape, y.shape), np.inf, dtype=np.float32)
    inside = np.zeros(nearest.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
        square = (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2
        nearest = np.minimum(nearest, square)
        if dy != 0:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * (dx / dy))
    distance = np.sqrt(nearest)
    return np.where(inside, -distance, distance)


def joined(*fields: Field) -> Field:
    return reduce(np.minimum, fields)


def common(*fields: Field) -> Field:
    return reduce(np.maximum, fields)


def without(field: Field, hole: Field) -> Field:
    return np.maximum(field, -hole)


def blended(a: Field, b: Field, width: float) -> Field:
    """A union whose seam is filled smoothly over `width`."""
    overlap = np.maximum(width - np.abs(a - b), 0)
    return np.minimum(a, b) - overlap * overlap / (4 * width)


def around(x: Field, y: Field, count: int, turn: float) -> tuple[Field, Field]:
    """Fold the plane into one of `count` equal sectors; the sector's axis becomes +x."""
    sector = 2 * math.pi / count
    angle = np.arctan2(y, x) - turn
    angle = angle - sector * np.round(angle / sector)
    radius = np.hypot(x, y)
    return radius * np.cos(angle), radius * np.sin(angle)


def star(draw: Draws, x: Field, y: Field) -> Figure:
    points = draw.pick((5, 5, 6))
    inner, core = draw.each((0.40, 0.50), (0.30, 0.42))
    corners = []
    for corner in range(2 * points):
        radius = 1.0 if corner % 2 == 0 else inner
        angle = math.pi * (corner / points - 0.5)
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    small = [(core * cx, core * cy) for cx, cy in corners]
    return polygon(x, y, corners) - 0.03, polygon(x, y, small) - 0.02


def moon(draw: Draws, x: Field, y: Field) -> Figure:
    shift, bite = draw.each((0.42, 0.58), (0.76, 0.88))
    craters = [(draw.between(2.3, 4.0), draw.between(0.07, 0.13)) for _ in range(draw.whole(2, 3))]
    middle = (shift - bite - 1) / 2  # halfway across the crescent at its thickest
    crescent = without(disc(x, y, 0, 0, 1), disc(x, y, shift, 0, bite))
    spots = [disc(x, y, middle * -math.cos(a), middle * -math.sin(a), r) for a, r in craters]
    return crescent, joined(*spots)


def heart(draw: Draws, x: Field, y: Field) -> Figure:
    plump, dip = draw.each((0.85, 1.1), (4.0, 6.0))
    corners = []
    for step in range(30):
        angle = 2 * math.pi * step / 30
        up = 13 * math.cos(angle) - dip * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)
        corners.append((plump * math.sin(angle) ** 3, -up / 16))
    shine = draw.between(0.16, 0.24)
    gleam = bar(x, y, -0.55 * plump, -0.32, -0.36 * plump, -0.52, shine * 0.6)
    return polygon(x, y, corners), gleam


def ring(draw: Draws, x: Field, y: Field) -> Figure:
    hole = draw.between(0.48, 0.62)
    bands = draw.whole(3, 5)
    half_angle = draw.between(0.45, 0.6) * math.pi / bands
    turn = draw.between(0, 2 * math.pi)
    buoy = without(disc(x, y, 0, 0, 1), disc(x, y, 0, 0, hole))
    u, v = around(x, y, bands, turn)
    return buoy, np.abs(v) * math.cos(half_angle) - u * math.sin(half_angle)


def cross(draw: Draws, x: Field, y: Field) -> Figure:
    width, flare, core = draw.each((0.24, 0.34), (0.0, 0.12), (0.14, 0.22))
    arm = [(0.0, -width + flare), (1.0, -width - flare), (1.0, width + flare), (0.0, width - flare)]
    u, v = around(x, y, 4, 0.0)
    return polygon(u, v, arm) - 0.02, box(x, y, 0, 0, core, core)


def arrow(draw: Draws, x: Field, y: Field) -> Figure:
    shaft, head, neck, barb, stripe = draw.each((0.15, 0.22), (0.5, 0.68), (-0.05, 0.25), (0.0, 0.15), (0.10, 0.16))
    upper = [(neck - barb, head), (neck, shaft), (-1.0, shaft)]
    corners = [(1.0, 0.0), *upper, *[(across, -down) for across, down in reversed(upper)]]
    bands = joined(np.abs(x + 0.86) - stripe * 0.7, np.abs(x + 0.5) - stripe * 0.6)
    return polygon(x, y, corners) - 0.02, bands


def gear(draw: Draws, x: Field, y: Field) -> Figure:
    teeth = draw.whole(7, 10)
    root = draw.between(0.72, 0.80)
    tooth = draw.between(0.15, 0.20) * 8 / teeth
    hole = draw.between(0.20, 0.32)
    hub = hole + draw.between(0.13, 0.2)
    u, v = around(x, y, teeth, 0.0)
    cogs = polygon(u, v, [(0.5, -tooth * 1.25), (1.0, -tooth * 0.8), (1.0, tooth * 0.8), (0.5, tooth * 1.25)])
    body = joined(disc(x, y, 0, 0, root), cogs)
    return without(body, disc(x, y, 0, 0, hole)), disc(x, y, 0, 0, hub)


def leaf(draw: Draws, x: Field, y: Field) -> Figure:
    slim = draw.between(0.45, 0.75)  # distance of the two circles' centres from the axis: larger is slimmer
    reach = math.hypot(0.85, slim)
    veins = draw.whole(3, 4)
    slant, stem = draw.each((0.22, 0.36), (0.25, 0.4))
    blade = common(disc(x, y, 0, slim, reach), disc(x, y, 0, -slim, reach))
    rib = bar(x, y, -0.85 - stem, 0, 0.7, 0, 0.045)
    sides = [
        bar(x, np.abs(y), -0.5 + 0.32 * i, 0, -0.5 + 0.32 * i + slant, 0.42 - 0.05 * i, 0.028) for i in range(veins)
    ]
    return joined(blade, rib), joined(rib, *sides)


def flower(draw: Draws, x: Field, y: Field) -> Figure:
    petals = draw.whole(5, 7)
    length = draw.between(0.38, 0.44)
    width = draw.between(0.80, 1.0) * math.sin(math.pi / petals) * 0.62
    heart_radius = draw.between(0.22, 0.32)
    u, v = around(x, y, petals, -math.pi / 2)
    centre = disc(x, y, 0, 0, heart_radius)
    return joined(ellipse(u, v, 1 - length, 0, length, width), centre - 0.04), centre


def key(draw: Draws, x: Field, y: Field) -> Figure:
    bow = draw.between(0.36, 0.44)
    hole = bow * draw.between(0.42, 0.55)
    shaft = draw.between(0.10, 0.13)
    teeth = draw.whole(2, 3)
    drop = draw.between(0.26, 0.36)
    head = disc(x, y, -0.58, 0, bow)
    rod = box(x, y, 0.2, 0, 0.8, shaft, 0.04)
    bits = [box(x, y, 0.9 - 0.27 * i, drop / 2 + 0.02, 0.085, drop / 2 + shaft / 2, 0.02) for i in range(teeth)]
    return without(joined(head, rod, *bits), disc(x, y, -0.58, 0, hole)), head


def fish(draw: Draws, x: Field, y: Field) -> Figure:
    depth, tail, fork, fin = draw.each((0.38, 0.52), (0.36, 0.52), (0.0, 0.16), (0.16, 0.3))
    fan = [(-0.42, 0.0), (-1.05, -tail), (-1.05 + fork, 0.0), (-1.05, tail)]
    back = [(-0.2, -depth + 0.1), (-0.15, -depth - fin), (0.4, -depth + 0.12)]
    body = ellipse(x, y, 0.2, 0, 0.78, depth)
    fins = joined(polygon(x, y, fan) - 0.03, polygon(x, y, back) - 0.03)
    eye = disc(x, y, 0.66, -0.1, 0.085)
    gill = np.abs(disc(x, y, 0.85, 0, 0.5)) - 0.035
    return blended(body, fins, 0.06), joined(eye, common(gill, body + 0.06), without(fins, body))


def boat(draw: Draws, x: Field, y: Field) -> Figure:
    deck, mast, aft, fore = draw.each((0.28, 0.4), (-0.12, 0.08), (0.45, 0.8), (0.35, 0.65))
    hull = [(-1.0, deck), (1.0, deck), (0.66, 0.86), (-0.72, 0.86)]
    main = [(mast - 0.08, -0.95), (mast - 0.08, deck - 0.12), (mast - 0.08 - aft, deck - 0.12)]
    jib = [(mast + 0.1, -0.8), (mast + 0.1, deck - 0.12), (mast + 0.1 + fore, deck - 0.12)]
    body = polygon(x, y, hull) - 0.02
    pole = bar(x, y, mast, -0.98, mast, deck, 0.05)
    return joined(body, pole, polygon(x, y, main), polygon(x, y, jib)), joined(body, pole)


def house(draw: Draws, x: Field, y: Field) -> Figure:
    eaves, half, ridge = draw.each((-0.2, 0.0), (0.62, 0.78), (-0.95, -0.75))
    door = draw.pick((-0.3, 0.0, 0.32))
    chimney = draw.pick((-0.42, 0.42))
    roof = [(-half - 0.2, eaves), (0.0, ridge), (half + 0.2, eaves)]
    walls = box(x, y, 0, (eaves + 0.85) / 2, half, (0.85 - eaves) / 2 + 0.02)
    stack = box(x, y, chimney, ridge + 0.2, 0.1, 0.26)
    top = polygon(x, y, roof)
    entry = box(x, y, door, 0.62, 0.13, 0.27)
    panes = [box(x, y, px, 0.3, 0.12, 0.13) for px in (-0.4, 0.0, 0.4) if abs(px - door) > 0.3]
    return joined(walls, stack, top), joined(top, entry, *panes)


def tree(draw: Draws, x: Field, y: Field) -> Figure:
    trunk_half = draw.between(0.09, 0.14)
    conifer = draw.chance(0.5)
    tiers = draw.whole(2, 3)
    spread = draw.between(0.55, 0.72)
    leaves = [(draw.between(-0.1, 0.1), draw.between(-0.1, 0.1), draw.between(0.36, 0.46)) for _ in range(4)]
    if conifer:
        tops = [-1.0 + 1.2 * i / tiers for i in range(tiers)]
        feet = [-1.0 + 1.5 * (i + 1) / tiers for i in range(tiers)]
        wide = [spread * (0.6 + 0.4 * (i + 1) / tiers) for i in range(tiers)]
        sides = zip(tops, feet, wide, strict=True)
        green = joined(*[polygon(x, y, [(0.0, top), (half, foot), (-half, foot)]) - 0.03 for top, foot, half in sides])
    else:
        places = zip(((-0.36, -0.12), (0.36, -0.12), (0.0, -0.55), (0.0, -0.05)), leaves, strict=True)
        green = joined(*[disc(x, y, px + dx, py + dy, r) for (px, py), (dx, dy, r) in places])
    trunk = box(x, y, 0, 0.6, trunk_half, 0.45)
    return joined(green, trunk), without(trunk, green)


def mushroom(draw: Draws, x: Field, y: Field) -> Figure:
    height, brim, stem = draw.each((0.7, 0.95), (-0.1, 0.1), (0.2, 0.3))
    spots = [(draw.between(-0.6, -0.35), 0.35), (draw.between(-0.1, 0.1), 0.68), (draw.between(0.35, 0.6), 0.38)]
    radii = [draw.between(0.09, 0.16) for _ in spots]
    dome = common(ellipse(x, y, 0, brim, 0.95, height), y - brim) - 0.05
    foot = blended(box(x, y, 0, 0.4, stem, 0.5, 0.1), ellipse(x, y, 0, 0.78, stem + 0.12, 0.16), 0.1)
    dots = [disc(x, y, px, brim - up * height, r) for (px, up), r in zip(spots, radii, strict=True)]
    return joined(dome, foot), joined(without(foot, dome), *dots)


def mug(draw: Draws, x: Field, y: Field) -> Figure:
    half, tall, handle, thick, band = draw.each((0.5, 0.6), (0.62, 0.8), (0.3, 0.4), (0.08, 0.11), (-0.15, 0.15))
    width = draw.between(0.12, 0.2)
    cup = box(x, y, -0.2, 0, half, tall, 0.1)
    grip = np.abs(disc(x, y, -0.2 + half, 0, handle + 0.02)) - thick
    rim = ellipse(x, y, -0.2, -tall + 0.06, half - 0.06, 0.1)
    belt = common(np.abs(y - band) - width, cup + 0.001)
    return joined(cup, without(grip, cup)), joined(rim, belt)


KINDS: dict[str, Callable[[Draws, Field, Field], Figure]] = {
    kind.__name__: kind
    for kind in (star, moon, heart, ring, cross, arrow, gear, leaf, flower, key, fish, boat, house, tree, mushroom, mug)
}
CLASSES: list[str] = list(KINDS)
