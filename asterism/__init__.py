"""Asterism learns what is in images, and where, without labels.

    import asterism

    run = asterism.pretrain(method="dino", data="photos/", out="runs/first")
    encoder = asterism.load("runs/first")
    features = encoder.encode(["a.jpg", "b.png"])
    asterism.evaluate("runs/first", data="labelled/", protocols=["knn"])

Names are loaded on first use, so that `import asterism` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism import ops
    from asterism.api import (
        concepts,
        embed,
        evaluate,
        export,
        finetune,
        plan,
        predict,
        pretrain,
        profile,
        reconstruct,
        report,
        search,
        segment,
        track,
    )
    from asterism.errors import UserError
    from asterism.evals.result import Result
    from asterism.extras.explorer.command import explore as explore
    from asterism.extras.studies.command import compare as compare
    from asterism.extras.words.command import align as align
    from asterism.models import load, weights
    from asterism.nn.encoder import Encoder
    from asterism.train.run import Run
    from asterism.types import Features

    __version__: str

_MODULES = {  # of the names that are not in `asterism.api`
    "Encoder": "nn.encoder",
    "Features": "types",
    "Result": "evals.result",
    "Run": "train.run",
    "UserError": "errors",
    "load": "models",
    "weights": "models",
}

__all__ = [
    "Encoder",
    "Features",
    "Result",
    "Run",
    "UserError",
    "__version__",
    "concepts",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "load",
    "ops",
    "plan",
    "predict",
    "pretrain",
    "profile",
    "reconstruct",
    "report",
    "search",
    "segment",
    "track",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("asterism")
    if name == "ops":
        return importlib.import_module("asterism.ops")
    if name in __all__:
        return getattr(importlib.import_module(f"asterism.{_MODULES.get(name, 'api')}"), name)
    from asterism.plugins import plugins

    if name in plugins("commands"):
        return plugins("commands")[name].load()
    raise AttributeError(f"module 'asterism' has no attribute {name!r}")


def __dir__() -> list[str]:
    from asterism.plugins import plugins

    return [*__all__, *plugins("commands")]
