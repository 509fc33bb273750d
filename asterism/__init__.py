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
        align,
        compare,
        concepts,
        embed,
        evaluate,
        explore,
        export,
        finetune,
        load,
        plan,
        predict,
        pretrain,
        profile,
        reconstruct,
        report,
        search,
        segment,
        track,
        weights,
    )
    from asterism.errors import UserError
    from asterism.evals.result import Result
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
}

__all__ = [
    "Encoder",
    "Features",
    "Result",
    "Run",
    "UserError",
    "__version__",
    "align",
    "compare",
    "concepts",
    "embed",
    "evaluate",
    "explore",
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
    raise AttributeError(f"module 'asterism' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
