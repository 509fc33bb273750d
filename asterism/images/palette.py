"""Colours for numbered classes and objects."""

from __future__ import annotations


def palette(count: int) -> list[tuple[int, int, int]]:
    """Colours of the numbers 0, 1, …: black, then colours that most people, also colour-blind ones, can distinguish.

    After the fixed ones, hues advance by the golden angle.
    """
    named = [(0, 0, 0), *_COLOURS]
    return [named[i] if i < len(named) else _hue(i) for i in range(count)]


_COLOURS = [
    (230, 75, 53),
    (52, 138, 224),
    (245, 184, 37),
    (38, 166, 120),
    (168, 92, 214),
    (242, 124, 182),
    (96, 205, 226),
    (150, 190, 60),
    (246, 146, 70),
    (120, 120, 240),
]


def _hue(number: int) -> tuple[int, int, int]:
    turn = (number * 0.381966) % 1.0 * 6
    level = [max(0.0, min(1.0, abs((turn + shift) % 6 - 3) - 1)) for shift in (0, 4, 2)]
    red, green, blue = (round(60 + 180 * value) for value in level)
    return red, green, blue
