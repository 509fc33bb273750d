"""The kinds of things in a scene: outlines as signed distance fields, with what varies within a class.

A kind is a function of random draws that returns a `Figure`: for points of the plane, the distance to the silhouette
and to its second part (a roof, an eye, a trunk), which is painted in a colour of its own. Proportions vary within a
class. Place, size, turn, squeeze, colour and texture are chosen by the layout: the shape alone makes the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from asterism.data.sources.scenes.distance import (
    Field,
    around,
    bar,
    blended,
    box,
    common,
    disc,
    ellipse,
    half_plane,
    joined,
    polygon,
    without,
)
from asterism.data.sources.scenes.draws import Draws

Figure: TypeAlias = Callable[[Field, Field], tuple[Field, Field]]
Kind: TypeAlias = Callable[[Draws], Figure]


def star(draw: Draws) -> Figure:
    points = draw.pick((5, 5, 6))
    inner = draw.between(0.40, 0.50)
    core = draw.between(0.30, 0.42)
    corners = []
    for corner in range(2 * points):
        radius = 1.0 if corner % 2 == 0 else inner
        angle = math.pi * (corner / points - 0.5)
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    small = [(core * x, core * y) for x, y in corners]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        return polygon(x, y, corners) - 0.03, polygon(x, y, small) - 0.02

    return figure


def moon(draw: Draws) -> Figure:
    shift = draw.between(0.42, 0.58)
    bite = draw.between(0.76, 0.88)
    craters = [(draw.between(2.3, 4.0), draw.between(0.07, 0.13)) for _ in range(draw.whole(2, 3))]
    middle = (shift - bite - 1) / 2  # halfway across the crescent at its thickest

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        crescent = without(disc(x, y, 0, 0, 1), disc(x, y, shift, 0, bite))
        spots = [disc(x, y, middle * -math.cos(a), middle * -math.sin(a), r) for a, r in craters]
        return crescent, joined(*spots)

    return figure


def heart(draw: Draws) -> Figure:
    plump = draw.between(0.85, 1.1)
    dip = draw.between(4.0, 6.0)
    corners = []
    for step in range(30):
        angle = 2 * math.pi * step / 30
        x = plump * math.sin(angle) ** 3
        y = 13 * math.cos(angle) - dip * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)
        corners.append((x, -y / 16))
    shine = draw.between(0.16, 0.24)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        gleam = bar(x, y, -0.55 * plump, -0.32, -0.36 * plump, -0.52, shine * 0.6)
        return polygon(x, y, corners), gleam

    return figure


def ring(draw: Draws) -> Figure:
    hole = draw.between(0.48, 0.62)
    bands = draw.whole(3, 5)
    half_angle = draw.between(0.45, 0.6) * math.pi / bands
    turn = draw.between(0, 2 * math.pi)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        buoy = without(disc(x, y, 0, 0, 1), disc(x, y, 0, 0, hole))
        u, v = around(x, y, bands, turn)
        band = np.abs(v) * math.cos(half_angle) - u * math.sin(half_angle)
        return buoy, band

    return figure


def cross(draw: Draws) -> Figure:
    width = draw.between(0.24, 0.34)
    flare = draw.between(0.0, 0.12)
    core = draw.between(0.14, 0.22)
    arm = [(0.0, -width + flare), (1.0, -width - flare), (1.0, width + flare), (0.0, width - flare)]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        u, v = around(x, y, 4, 0.0)
        return polygon(u, v, arm) - 0.02, box(x, y, 0, 0, core, core)

    return figure


def arrow(draw: Draws) -> Figure:
    shaft = draw.between(0.15, 0.22)
    head = draw.between(0.5, 0.68)
    neck = draw.between(-0.05, 0.25)
    barb = draw.between(0.0, 0.15)
    stripe = draw.between(0.10, 0.16)
    corners = [
        (1.0, 0.0),
        (neck - barb, head),
        (neck, shaft),
        (-1.0, shaft),
        (-1.0, -shaft),
        (neck, -shaft),
        (neck - barb, -head),
    ]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        bands = joined(np.abs(x + 0.86) - stripe * 0.7, np.abs(x + 0.5) - stripe * 0.6)
        return polygon(x, y, corners) - 0.02, bands

    return figure


def gear(draw: Draws) -> Figure:
    teeth = draw.whole(7, 10)
    root = draw.between(0.72, 0.80)
    tooth = draw.between(0.15, 0.20) * 8 / teeth
    hole = draw.between(0.20, 0.32)
    hub = hole + draw.between(0.13, 0.2)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        u, v = around(x, y, teeth, 0.0)
        cogs = polygon(u, v, [(0.5, -tooth * 1.25), (1.0, -tooth * 0.8), (1.0, tooth * 0.8), (0.5, tooth * 1.25)])
        body = joined(disc(x, y, 0, 0, root), cogs)
        return without(body, disc(x, y, 0, 0, hole)), disc(x, y, 0, 0, hub)

    return figure


def leaf(draw: Draws) -> Figure:
    slim = draw.between(0.45, 0.75)  # distance of the two circles' centres from the axis: larger is slimmer
    reach = math.hypot(0.85, slim)
    veins = draw.whole(3, 4)
    slant = draw.between(0.22, 0.36)
    stem = draw.between(0.25, 0.4)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        blade = common(disc(x, y, 0, slim, reach), disc(x, y, 0, -slim, reach))
        rib = bar(x, y, -0.85 - stem, 0, 0.7, 0, 0.045)
        sides = [
            bar(x, np.abs(y), -0.5 + 0.32 * i, 0, -0.5 + 0.32 * i + slant, 0.42 - 0.05 * i, 0.028) for i in range(veins)
        ]
        return joined(blade, rib), joined(rib, *sides)

    return figure


def flower(draw: Draws) -> Figure:
    petals = draw.whole(5, 7)
    length = draw.between(0.38, 0.44)
    width = draw.between(0.80, 1.0) * math.sin(math.pi / petals) * 0.62
    heart_radius = draw.between(0.22, 0.32)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        u, v = around(x, y, petals, -math.pi / 2)
        centre = disc(x, y, 0, 0, heart_radius)
        return joined(ellipse(u, v, 1 - length, 0, length, width), centre - 0.04), centre

    return figure


def key(draw: Draws) -> Figure:
    bow = draw.between(0.36, 0.44)
    hole = bow * draw.between(0.42, 0.55)
    shaft = draw.between(0.10, 0.13)
    teeth = draw.whole(2, 3)
    drop = draw.between(0.26, 0.36)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        head = disc(x, y, -0.58, 0, bow)
        rod = box(x, y, 0.2, 0, 0.8, shaft, 0.04)
        bits = [box(x, y, 0.9 - 0.27 * i, drop / 2 + 0.02, 0.085, drop / 2 + shaft / 2, 0.02) for i in range(teeth)]
        return without(joined(head, rod, *bits), disc(x, y, -0.58, 0, hole)), head

    return figure


def fish(draw: Draws) -> Figure:
    depth = draw.between(0.38, 0.52)
    tail = draw.between(0.36, 0.52)
    fork = draw.between(0.0, 0.16)
    fin = draw.between(0.16, 0.3)
    fan = [(-0.42, 0.0), (-1.05, -tail), (-1.05 + fork, 0.0), (-1.05, tail)]
    back = [(-0.2, -depth + 0.1), (-0.15, -depth - fin), (0.4, -depth + 0.12)]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        body = ellipse(x, y, 0.2, 0, 0.78, depth)
        fins = joined(polygon(x, y, fan) - 0.03, polygon(x, y, back) - 0.03)
        eye = disc(x, y, 0.66, -0.1, 0.085)
        gill = np.abs(disc(x, y, 0.85, 0, 0.5)) - 0.035
        return blended(body, fins, 0.06), joined(eye, common(gill, body + 0.06), without(fins, body))

    return figure


def boat(draw: Draws) -> Figure:
    deck = draw.between(0.28, 0.4)
    mast = draw.between(-0.12, 0.08)
    aft = draw.between(0.45, 0.8)
    fore = draw.between(0.35, 0.65)
    hull = [(-1.0, deck), (1.0, deck), (0.66, 0.86), (-0.72, 0.86)]
    main = [(mast - 0.08, -0.95), (mast - 0.08, deck - 0.12), (mast - 0.08 - aft, deck - 0.12)]
    jib = [(mast + 0.1, -0.8), (mast + 0.1, deck - 0.12), (mast + 0.1 + fore, deck - 0.12)]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        body = polygon(x, y, hull) - 0.02
        pole = bar(x, y, mast, -0.98, mast, deck, 0.05)
        return joined(body, pole, polygon(x, y, main), polygon(x, y, jib)), joined(body, pole)

    return figure


def house(draw: Draws) -> Figure:
    eaves = draw.between(-0.2, 0.0)
    half = draw.between(0.62, 0.78)
    ridge = draw.between(-0.95, -0.75)
    door = draw.pick((-0.3, 0.0, 0.32))
    chimney = draw.pick((-0.42, 0.42))
    roof = [(-half - 0.2, eaves), (0.0, ridge), (half + 0.2, eaves)]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        walls = box(x, y, 0, (eaves + 0.85) / 2, half, (0.85 - eaves) / 2 + 0.02)
        stack = box(x, y, chimney, ridge + 0.2, 0.1, 0.26)
        top = polygon(x, y, roof)
        entry = box(x, y, door, 0.62, 0.13, 0.27)
        panes = [box(x, y, px, 0.3, 0.12, 0.13) for px in (-0.4, 0.0, 0.4) if abs(px - door) > 0.3]
        return joined(walls, stack, top), joined(top, entry, *panes)

    return figure


def tree(draw: Draws) -> Figure:
    trunk_half = draw.between(0.09, 0.14)
    conifer = draw.chance(0.5)
    tiers = draw.whole(2, 3)
    spread = draw.between(0.55, 0.72)
    leaves = [(draw.between(-0.1, 0.1), draw.between(-0.1, 0.1), draw.between(0.36, 0.46)) for _ in range(4)]

    def crown(x: Field, y: Field) -> Field:
        if conifer:
            tops = [-1.0 + 1.2 * i / tiers for i in range(tiers)]
            feet = [-1.0 + 1.5 * (i + 1) / tiers for i in range(tiers)]
            wide = [spread * (0.6 + 0.4 * (i + 1) / tiers) for i in range(tiers)]
            return joined(
                *[polygon(x, y, [(0.0, t), (w, f), (-w, f)]) - 0.03 for t, f, w in zip(tops, feet, wide, strict=True)]
            )
        places = ((-0.36, -0.12), (0.36, -0.12), (0.0, -0.55), (0.0, -0.05))
        return joined(*[disc(x, y, px + dx, py + dy, r) for (px, py), (dx, dy, r) in zip(places, leaves, strict=True)])

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        green = crown(x, y)
        trunk = box(x, y, 0, 0.6, trunk_half, 0.45)
        return joined(green, trunk), without(trunk, green)

    return figure


def mushroom(draw: Draws) -> Figure:
    height = draw.between(0.7, 0.95)
    brim = draw.between(-0.1, 0.1)
    stem = draw.between(0.2, 0.3)
    spots = [(draw.between(-0.6, -0.35), 0.35), (draw.between(-0.1, 0.1), 0.68), (draw.between(0.35, 0.6), 0.38)]
    radii = [draw.between(0.09, 0.16) for _ in spots]

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        dome = common(ellipse(x, y, 0, brim, 0.95, height), half_plane(x, y, 0, brim, math.pi / 2)) - 0.05
        foot = blended(box(x, y, 0, 0.4, stem, 0.5, 0.1), ellipse(x, y, 0, 0.78, stem + 0.12, 0.16), 0.1)
        dots = [disc(x, y, px, brim - up * height, r) for (px, up), r in zip(spots, radii, strict=True)]
        return joined(dome, foot), joined(without(foot, dome), *dots)

    return figure


def mug(draw: Draws) -> Figure:
    half = draw.between(0.5, 0.6)
    tall = draw.between(0.62, 0.8)
    handle = draw.between(0.3, 0.4)
    thick = draw.between(0.08, 0.11)
    band = draw.between(-0.15, 0.15)
    width = draw.between(0.12, 0.2)

    def figure(x: Field, y: Field) -> tuple[Field, Field]:
        cup = box(x, y, -0.2, 0, half, tall, 0.1)
        grip = np.abs(disc(x, y, -0.2 + half, 0, handle + 0.02)) - thick
        rim = ellipse(x, y, -0.2, -tall + 0.06, half - 0.06, 0.1)
        belt = common(np.abs(y - band) - width, cup + 0.001)
        return joined(cup, without(grip, cup)), joined(rim, belt)

    return figure


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (star, moon, heart, ring, cross, arrow, gear, leaf, flower, key, fish, boat, house, tree, mushroom, mug)
}
CLASSES: list[str] = list(KINDS)
