"""Asterism learns what is in images, and where, without labels.

    import asterism

    run = asterism.pretrain(method="dino", data="photos/", out="runs/first")
    encoder = asterism.load("runs/first")
    features = encoder.encode(images)
    asterism.evaluate("runs/first", data="labelled/", protocols=["knn"])

The names are loaded when first used, so that `import asterism` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.api import (
        compare,
        concepts,
        embed,
        evaluate,
        load,
        plan,
        pretrain,
        reconstruct,
        report,
        search,
        segment,
        track,
    )

    __version__: str

__all__ = [
    "__version__",
    "compare",
    "concepts",
    "embed",
    "evaluate",
    "load",
    "plan",
    "pretrain",
    "reconstruct",
    "report",
    "search",
    "segment",
    "track",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("asterism")
    if name in __all__:
        return getattr(importlib.import_module("asterism.api"), name)
    raise AttributeError(f"module 'asterism' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
