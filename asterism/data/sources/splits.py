"""Common names of the parts of a data set, and the choice of the part that is meant."""

from __future__ import annotations

from collections.abc import Iterable

from asterism.errors import UserError

EVERYTHING = "all"  # selects all parts together
TRAIN_AND_VALIDATION = "trainval"  # selects these two parts of a set that also has a test part

_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation", "dev")
_TEST = ("test", "testing")
NAMES = (*_TRAIN, *_VALIDATION, *_TEST)


class UnknownSplit(UserError):
    """The data has no part of that name."""


def part(name: str) -> str | None:
    """The part that a file or folder name indicates: "train", "val", "test", or None."""
    for kind, names in (("train", _TRAIN), ("val", _VALIDATION), ("test", _TEST)):
        if name.lower() in names:
            return kind
    return None


def divided(names: Iterable[str]) -> bool:
    """Whether these are the parts of a divided data set: training data and data held out from it."""
    parts = {part(name) for name in names} - {None}
    return "train" in parts and len(parts) > 1


def pick(split: str | None, available: Iterable[str], where: str) -> str:
    """The available name that matches `split`; None selects the training data. If a data set has only one of validation
    and test data, either word selects it."""
    names = sorted(available)
    wanted = part(split) if split is not None else "train"
    kinds = {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}
    exact = [name for name in names if split is not None and name.lower() == split.lower()]
    similar = [name for kind in kinds.get(wanted or "", ()) for name in names if part(name) == kind]
    if exact or similar:
        return (exact + similar)[0]
    problem = "no split was named" if split is None else f"there is no split {split!r}"
    raise UnknownSplit(f"{where}: {problem}; it has {', '.join(names) or 'no splits, so leave the split out'}")
