"""Images: where they come from, how they are read, and how they reach training and evaluation.

Names are imported on first use, so that listing data sets does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.data.bad_images import BadImageLog
    from asterism.data.crops import EvaluationBatch, evaluation_batches
    from asterism.data.loader import Loaded, Loader
    from asterism.data.sources.catalog import dataset_names
    from asterism.data.sources.derived import Subset
    from asterism.data.sources.open import open_source
    from asterism.data.sources.scenes import Scenes
    from asterism.data.sources.source import Sample, Source
    from asterism.data.view_batches import DataConfig, make_batch, to_batch, view_loader
    from asterism.data.views import Views

_HOMES = {
    "BadImageLog": "bad_images",
    "DataConfig": "view_batches",
    "EvaluationBatch": "crops",
    "Loaded": "loader",
    "Loader": "loader",
    "Sample": "sources.source",
    "Scenes": "sources.scenes",
    "Source": "sources.source",
    "Subset": "sources.derived",
    "Views": "views",
    "dataset_names": "sources.catalog",
    "evaluation_batches": "crops",
    "make_batch": "view_batches",
    "open_source": "sources.open",
    "to_batch": "view_batches",
    "view_loader": "view_batches",
}

__all__ = [
    "BadImageLog",
    "DataConfig",
    "EvaluationBatch",
    "Loaded",
    "Loader",
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
    "view_loader",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'asterism.data' has no attribute {name!r}")
