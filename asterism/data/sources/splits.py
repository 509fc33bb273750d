"""The names people give to the parts of a data set, and which part is meant."""

from __future__ import annotations

from collections.abc import Iterable

from asterism.errors import UserError

EVERYTHING = "all"  # asks for all parts together

_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation", "dev")
_TEST = ("test", "testing")
NAMES = (*_TRAIN, *_VALIDATION, *_TEST)


class UnknownSplit(UserError):
    """The data has no part of that name."""


def part(name: str) -> str | None:
    """The part that a file or folder name says it belongs to: "train", "val", "test", or None."""
    for kind, names in (("train", _TRAIN), ("val", _VALIDATION), ("test", _TEST)):
        if name.lower() in names:
            return kind
    return None


def divided(names: Iterable[str]) -> bool:
    """Whether these are the parts of a divided set: training data and data held out from it."""
    parts = {part(name) for name in names} - {None}
    return "train" in parts and len(parts) > 1


def pick(split: str | None, available: Iterable[str], where: str) -> str:
    """The available name that is meant. Nothing said means training data; where a set has only one of validation and
    test data, either word gets it."""
    names = sorted(available)
    wanted = part(split) if split is not None else "train"
    kinds = {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}
    exact = [name for name in names if split is not None and name.lower() == split.lower()]
    similar = [name for kind in kinds.get(wanted or "", ()) for name in names if part(name) == kind]
    if exact or similar:
        return (exact + similar)[0]
    asked = "no split was named" if split is None else f"there is no split {split!r}"
    raise UnknownSplit(f"{where}: {asked}; it has {', '.join(names) or 'no splits, so leave the split out'}")
