"""The ranges of settings: every number in a configuration has one of these types, or its own bounds.

Floats are finite everywhere (`Config` refuses nan and inf), and whole numbers fit into 64 bits.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

T = TypeVar("T")

Several = Annotated[tuple[T, ...], Field(min_length=1)]

_MOST = 2**31 - 1  # of anything counted: steps, images, channels
_LARGEST = 1e12  # of any measure; beyond it float32 has lost all detail
_SMALLEST = 1e-12  # of any measure that is not 0; far smaller ones underflow in powers and quotients


def _not_tiny(value: float) -> float:
    if 0 < value < _SMALLEST:
        raise ValueError(f"is too small to compute with; give at least {_SMALLEST:g}")
    return value


Count = Annotated[int, Field(ge=1, le=_MOST)]
CountFromZero = Annotated[int, Field(ge=0, le=_MOST)]
CountFromTwo = Annotated[int, Field(ge=2, le=_MOST)]
Few = Annotated[int, Field(ge=1, le=1024)]  # of things that are built or repeated one by one: blocks, rounds, views
FewFromZero = Annotated[int, Field(ge=0, le=1024)]
Pixels = Annotated[int, Field(ge=1, le=16_384)]  # side of an image or of a part of it
LongerSide = Annotated[int, Field(ge=8, le=16_384)]  # of an image, in pixels; smaller ones are refused anyway
Level = Annotated[int, Field(ge=0, le=256)]  # of an 8-bit channel; 256 is above all
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # torch and the keys of `asterism.ops.random` hold signed 64-bit integers

Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
NonNegative = Annotated[float, Field(ge=0, le=_LARGEST), AfterValidator(_not_tiny)]
Positive = Annotated[float, Field(gt=0, le=_LARGEST), AfterValidator(_not_tiny)]
AtLeastOne = Annotated[float, Field(ge=1, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
InnerShare = Annotated[float, Field(gt=0, lt=1)]
Zoom = Annotated[float, Field(gt=1, le=1000)]
Hue = Annotated[float, Field(ge=0, le=0.5)]  # half the colour circle
Temperature = Annotated[float, Field(ge=0.001, le=_LARGEST)]  # of cosines; gradients are divided by it
VoteTemperature = Annotated[float, Field(ge=0.02, le=_LARGEST)]  # exp(1 / 0.02) is close to the largest float32


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError("give the smaller number first")
    return pair


AreaRange = Annotated[tuple[PositiveShare, PositiveShare], AfterValidator(_ascending)]  # of a crop, share of the image
PositiveRange = Annotated[tuple[Positive, Positive], AfterValidator(_ascending)]
NonNegativeRange = Annotated[tuple[NonNegative, NonNegative], AfterValidator(_ascending)]
