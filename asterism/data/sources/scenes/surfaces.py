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

# Materials things like to be made of: a hint of the class, not a proof, as each pattern serves several classes and
# every class also comes in every other pattern.
USUAL = {
    "star": ("plain", "fade", "hoops"),
    "moon": ("marble", "grain", "plain"),
    "heart": ("plain", "fade", "dots"),
    "ring": ("plain", "grain", "fade"),
    "cross": ("plain", "checks", "waves"),
    "arrow": ("plain", "fade", "stripes"),
    "gear": ("grain", "plain", "hoops"),
    "leaf": ("fade", "marble", "plain"),
    "flower": ("fade", "hoops", "plain"),
    "key": ("grain", "fade", "plain"),
    "fish": ("dots", "stripes", "waves"),
    "boat": ("plain", "stripes", "grain"),
    "house": ("checks", "plain", "stripes"),
    "tree": ("marble", "grain", "dots"),
    "mushroom": ("plain", "fade", "marble"),
    "mug": ("dots", "waves", "checks"),
}

# Colours they like to have, as hues: two classes share each, so that colour and pattern together tell more than either.
USUAL_HUE = {
    "heart": 0.98,
    "mushroom": 0.98,
    "fish": 0.06,
    "key": 0.06,
    "star": 0.15,
    "ring": 0.15,
    "leaf": 0.32,
    "tree": 0.32,
    "boat": 0.49,
    "gear": 0.49,
    "moon": 0.62,
    "arrow": 0.62,
    "flower": 0.76,
    "mug": 0.76,
    "house": 0.88,
    "cross": 0.88,
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
