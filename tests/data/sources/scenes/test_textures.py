import math

import numpy as np
import torch

from asterism.data.sources.scenes.textures import Frame, bilinear, noise

FRAME = Frame(np.float32([0.5, 1.5, 2.5]), np.float32([4.5, 5.5]), (0.3, -0.1, 0.02), (0.2, 0.25, -1.4))


def places(frame: Frame) -> list[list[tuple[float, float]]]:
    """(x, y) of every pixel, from the definition."""
    (xx, xy, x0), (yx, yy, y0) = frame.x, frame.y
    columns, rows = frame.columns.tolist(), frame.rows.tolist()
    return [[(xx * c + xy * r + x0, yx * c + yy * r + y0) for c in columns] for r in rows]


def between(table: np.ndarray, x: float, y: float) -> float:
    """One bilinear value; -1 and 1 are the outermost points."""
    rows, columns = table.shape
    c = min(max((x + 1) / 2 * (columns - 1), 0), columns - 1)
    r = min(max((y + 1) / 2 * (rows - 1), 0), rows - 1)
    c0, r0 = min(math.floor(c), columns - 2), min(math.floor(r), rows - 2)
    c, r = c - c0, r - r0
    upper = table[r0, c0] * (1 - c) + table[r0, c0 + 1] * c
    lower = table[r0 + 1, c0] * (1 - c) + table[r0 + 1, c0 + 1] * c
    return float(upper * (1 - r) + lower * r)


def test_linear_field() -> None:
    expected = np.array([[2 * x - 3 * y + 0.5 for x, y in row] for row in places(FRAME)])
    np.testing.assert_allclose(FRAME.linear(2, -3, 0.5), expected, atol=1e-5)


def test_moved_frame_scales_then_shifts() -> None:
    expected = np.array([[(2 * x + 0.1, -y + 0.7) for x, y in row] for row in places(FRAME)])
    np.testing.assert_allclose(np.array(places(FRAME.moved(2, 0.1, -1, 0.7))), expected, atol=1e-6)


def test_bilinear_reads_between_four_points_and_repeats_the_border() -> None:
    table = np.random.default_rng(0).standard_normal((2, 5, 7)).astype(np.float32)
    frame = FRAME.moved(1.5, 0.3, 1.5, -0.2)  # reaches beyond the table
    expected = np.array([[[between(t, x, y) for x, y in row] for row in places(frame)] for t in table])
    np.testing.assert_allclose(bilinear(torch.from_numpy(table)[None], frame), expected, atol=1e-5)


def test_noise_repeats_and_has_no_seams() -> None:
    line = np.linspace(0, 0.9, 200, dtype=np.float32)
    for name in ("clouds", "grain"):
        here = noise(name, Frame(line, line), 0.9 / 200)
        far = noise(name, Frame(line, line).moved(1, -3, 1, 2), 0.9 / 200)
        np.testing.assert_allclose(here, far, atol=1e-3)
        across = noise(name, Frame(line, line).moved(1, 0.55, 1, 0.55), 0.9 / 200)  # the tile ends in its middle
        jumps = np.abs(np.diff(across, axis=1)).max(0)
        assert jumps.max() < 3 * np.median(jumps) + 0.05
        assert here.min() >= 0
        assert here.max() <= 1


def test_coarse_noise_is_the_mean_of_fine_noise() -> None:
    """What a small picture shows is the average of what a large one shows there, not a lucky sample of it."""
    fine = (np.arange(512, dtype=np.float32) + 0.5) / 512 * 0.8
    coarse = (np.arange(16, dtype=np.float32) + 0.5) / 16 * 0.8
    large = noise("grain", Frame(fine, fine), 0.8 / 512).reshape(16, 32, 16, 32).mean((1, 3))
    small = noise("grain", Frame(coarse, coarse), 0.8 / 16)
    assert np.abs(small - large).mean() < 0.5 * large.std()
