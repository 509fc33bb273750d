"""What things are made of: two colours mixed by a pattern that turns with them, and a third for their second part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from asterism.data.sources.scenes.distance import Field
from asterism.data.sources.scenes.lookup import Frame, clip_to_unit
from asterism.data.sources.scenes.tiles import TileName, noise

Color: TypeAlias = tuple[float, float, float]  # red, green, blue in [0, 1]

PATTERNS = ("plain", "fade", "stripes", "checks", "dots", "hoops", "waves", "marble", "grain")

FINE, COARSE = (2.9, 3.7), (1.3, 1.8)  # repeats of a pattern per radius


@dataclass(frozen=True, slots=True)
class Material:
    """What things are made of: a pattern, how often it repeats per radius (from, to), and two hues."""

    pattern: str
    cycles: tuple[float, float]
    hue: float  # of the body
    part_hue: float  # of the outline's second part


_RED, _ORANGE, _YELLOW, _GREEN, _CYAN, _BLUE, _VIOLET, _PINK = (0.99, 0.07, 0.15, 0.34, 0.49, 0.61, 0.75, 0.89)

# What the things of a class are usually made of. Two classes share each hue of the body, two each hue of the part, and
# two each pattern: one of them alone does not tell the class, all together with the outline do.
USUAL = {
    "star": Material("hoops", COARSE, _YELLOW, _BLUE),
    "moon": Material("marble", FINE, _BLUE, _YELLOW),
    "heart": Material("plain", COARSE, _RED, _PINK),
    "ring": Material("stripes", COARSE, _RED, _CYAN),
    "cross": Material("checks", COARSE, _CYAN, _RED),
    "arrow": Material("fade", COARSE, _ORANGE, _BLUE),
    "gear": Material("grain", FINE, _BLUE, _ORANGE),
    "leaf": Material("fade", FINE, _GREEN, _YELLOW),
    "flower": Material("plain", COARSE, _PINK, _GREEN),
    "key": Material("grain", COARSE, _YELLOW, _VIOLET),
    "fish": Material("stripes", FINE, _ORANGE, _CYAN),
    "boat": Material("waves", COARSE, _CYAN, _ORANGE),
    "house": Material("checks", FINE, _PINK, _VIOLET),
    "tree": Material("marble", COARSE, _GREEN, _RED),
    "mushroom": Material("dots", COARSE, _VIOLET, _PINK),
    "mug": Material("dots", FINE, _VIOLET, _GREEN),
}


@dataclass(frozen=True, slots=True)
class Surface:
    """Colours and pattern of one thing."""

    pattern: str
    base: Color
    second: Color  # the pattern's other colour
    part: Color  # of the outline's second part
    cycles: float  # repeats of the pattern per radius of the thing
    direction: float  # of the pattern in the thing's own frame, radians
    phase: float  # in [0, 1)


def pattern(surface: Surface, frame: Frame, pixels: float) -> Field:
    """Share of the second colour at points of the thing's frame, whose radius (length 1) is `pixels` pixels wide.

    Edges are one pixel soft, and patterns too fine for the pixels fade into their mean instead of aliasing.
    """
    period = pixels / surface.cycles
    contrast = min(1.0, max(0.0, (period - 2) / 2))
    steep = max(0.5, period / (2 * math.pi))
    a, b = math.cos(surface.direction), math.sin(surface.direction)
    wave = 2 * math.pi * surface.cycles
    shift = 2 * math.pi * surface.phase

    match surface.pattern:
        case "fade":
            return clip_to_unit(frame.linear(0.6 * a, 0.6 * b, 0.5))
        case "marble":
            return _veined("clouds", surface, frame, 0.05 * surface.cycles, pixels)
        case "grain":
            return _veined("grain", surface, frame, 0.11 * surface.cycles, pixels)
        case "stripes":
            share = np.sin(frame.linear(wave * a, wave * b, shift))
        case "waves":
            bend = np.sin(frame.linear(-wave * b, wave * a))
            share = np.sin(frame.linear(wave * a, wave * b, shift) + 1.3 * bend)
        case "hoops":
            share = np.sin(wave * np.sqrt(frame.linear(1, 0) ** 2 + frame.linear(0, 1) ** 2) + shift)
        case "checks":
            share = np.sin(frame.linear(wave * a, wave * b, shift))
            share *= np.sin(frame.linear(-wave * b, wave * a))
            steep *= 2
        case "dots":
            share = np.sin(frame.linear(wave * a, wave * b, shift))
            share += np.sin(frame.linear(-wave * b, wave * a))
            share -= 0.7
        case other:
            raise AssertionError(other)
    share *= steep * contrast
    share += 0.5
    return clip_to_unit(share)


def _veined(tile: TileName, surface: Surface, frame: Frame, scale: float, pixels: float) -> Field:
    share = noise(tile, frame.moved(scale, surface.phase, scale, surface.direction), scale / pixels)
    share *= 1.6
    share -= 0.3
    return clip_to_unit(share)
