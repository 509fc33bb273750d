import math

import numpy as np

from asterism.data.sources.scenes.shapes import (
    around,
    bar,
    blended,
    box,
    disc,
    ellipse,
    joined,
    polygon,
    without,
)

LINE = np.linspace(-1.5, 1.5, 25, dtype=np.float32)
X, Y = np.meshgrid(LINE, LINE)


def nearest_on(points: np.ndarray) -> np.ndarray:
    """Distance from every point of the plane to the nearest of a dense set of boundary points."""
    return np.hypot(X[..., None] - points[:, 0], Y[..., None] - points[:, 1]).min(-1)


def walk(corners: list[tuple[float, float]], steps: int = 400) -> np.ndarray:
    t = np.linspace(0, 1, steps)[:, None]
    ends = [*corners[1:], corners[0]]
    return np.concatenate([np.array(a) * (1 - t) + np.array(b) * t for a, b in zip(corners, ends, strict=True)])


def winds_around(corners: list[tuple[float, float]], x: float, y: float) -> bool:
    """The angle under which the corners are seen from a point sums to ±2π inside and to 0 outside."""
    angles = [math.atan2(cy - y, cx - x) for cx, cy in corners]
    turns = [(b - a + math.pi) % (2 * math.pi) - math.pi for a, b in zip(angles, angles[1:] + angles[:1], strict=True)]
    return abs(sum(turns)) > math.pi


def test_polygon_is_the_distance_to_its_sides_negative_inside() -> None:
    corners = [(-0.9, -0.55), (0.3, -0.8), (0.15, 0.03), (1.1, 0.77), (-0.62, 0.9)]
    inside = np.array([[winds_around(corners, float(x), float(y)) for x in LINE] for y in LINE])
    expected = nearest_on(walk(corners)) * np.where(inside, -1, 1)
    np.testing.assert_allclose(polygon(X, Y, corners), expected, atol=4e-3)


def test_box_equals_the_polygon_of_its_corners() -> None:
    corners = [(-0.5, -0.1), (0.9, -0.1), (0.9, 0.7), (-0.5, 0.7)]
    np.testing.assert_allclose(box(X, Y, 0.2, 0.3, 0.7, 0.4), polygon(X, Y, corners), atol=1e-6)


def test_bar_is_all_that_is_near_a_line() -> None:
    along = np.linspace((-0.4, 0.2), (0.7, -0.5), 2000)
    np.testing.assert_allclose(bar(X, Y, -0.4, 0.2, 0.7, -0.5, 0.15), nearest_on(along) - 0.15, atol=1e-3)


def test_ellipse_is_zero_on_its_boundary_with_unit_slope_there() -> None:
    angle = np.linspace(0, 2 * math.pi, 50)
    out = np.stack([np.cos(angle) / 0.8, np.sin(angle) / 0.5])
    out /= np.hypot(*out)
    for step in (0.0, 0.01, -0.01):
        x = 0.1 + 0.8 * np.cos(angle) + step * out[0]
        y = -0.2 + 0.5 * np.sin(angle) + step * out[1]
        np.testing.assert_allclose(ellipse(x, y, 0.1, -0.2, 0.8, 0.5), step, atol=5e-4)


def test_combinations_follow_the_sets() -> None:
    a, b = disc(X, Y, -0.2, 0, 0.7), disc(X, Y, 0.4, 0.1, 0.5)
    assert ((joined(a, b) < 0) == ((a < 0) | (b < 0))).all()
    assert ((without(a, b) < 0) == ((a < 0) & (b > 0))).all()
    assert (blended(a, b, 0.1) <= joined(a, b)).all()


def test_around_repeats_a_figure_in_every_sector() -> None:
    u, v = around(X, Y, 5, 0.3)
    expected = joined(*[disc(X, Y, math.cos(a), math.sin(a), 0.2) for a in 0.3 + 2 * math.pi / 5 * np.arange(5)])
    np.testing.assert_allclose(disc(u, v, 1, 0, 0.2), expected, atol=1e-5)
