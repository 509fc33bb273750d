"""Images: where they come from, how they are read, and how they reach training and evaluation.

Names are imported on first use, so that listing data sets does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.data.bad_images import BadImageLog
    from asterism.data.evaluation.batches import EvaluationBatch, evaluation_batches
    from asterism.data.loader import DataConfig, Loader, RawBatch, to_batch
    from asterism.data.own_batch import make_batch
    from asterism.data.sources.catalog import dataset_names
    from asterism.data.sources.derived import Subset
    from asterism.data.sources.open import open_source
    from asterism.data.sources.scenes import Scenes
    from asterism.data.sources.source import Sample, Source
    from asterism.data.views import Views

_HOMES = {
    "BadImageLog": "bad_images",
    "DataConfig": "loader",
    "EvaluationBatch": "evaluation.batches",
    "Loader": "loader",
    "RawBatch": "loader",
    "Sample": "sources.source",
    "Scenes": "sources.scenes",
    "Source": "sources.source",
    "Subset": "sources.derived",
    "Views": "views",
    "dataset_names": "sources.catalog",
    "evaluation_batches": "evaluation.batches",
    "make_batch": "own_batch",
    "open_source": "sources.open",
    "to_batch": "loader",
}

__all__ = [
    "BadImageLog",
    "DataConfig",
    "EvaluationBatch",
    "Loader",
    "RawBatch",
    "Sample",
    "Scenes",
    "Source",
    "Subset",
    "Views",
    "dataset_names",
    "evaluation_batches",
    "make_batch",
    "open_source",
    "to_batch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'asterism.data' has no attribute {name!r}")
