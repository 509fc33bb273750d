"""Signed distances to simple figures: negative inside, in the unit of the coordinates. The y axis points down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

Field: TypeAlias = Float[np.ndarray, "..."]  # a number for every point


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


def half_plane(x: Field, y: Field, px: float, py: float, angle: float) -> Field:
    """Everything behind the line through p; `angle` is the direction of its outward normal."""
    return (x - px) * math.cos(angle) + (y - py) * math.sin(angle)


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
    result = fields[0]
    for field in fields[1:]:
        result = np.minimum(result, field)
    return result


def common(*fields: Field) -> Field:
    result = fields[0]
    for field in fields[1:]:
        result = np.maximum(result, field)
    return result


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
