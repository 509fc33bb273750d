"""Images: where they come from, how they are read, and how they reach training and evaluation.

Names are imported on first use, so that listing data sets does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.data.bad_images import BadImageLog as BadImageLog
    from asterism.data.crops import EvaluationBatch as EvaluationBatch
    from asterism.data.crops import evaluation_batches as evaluation_batches
    from asterism.data.loader import Loaded as Loaded
    from asterism.data.loader import Loader as Loader
    from asterism.data.sources.catalog import dataset_names as dataset_names
    from asterism.data.sources.derived import Subset as Subset
    from asterism.data.sources.open import open_source as open_source
    from asterism.data.sources.scenes import Scenes as Scenes
    from asterism.data.sources.source import Sample as Sample
    from asterism.data.sources.source import Source as Source
    from asterism.data.view_batches import (
        DataConfig as DataConfig,
    )
    from asterism.data.view_batches import (
        make_batch as make_batch,
    )
    from asterism.data.view_batches import (
        to_batch as to_batch,
    )
    from asterism.data.view_batches import (
        view_loader as view_loader,
    )
    from asterism.data.views import Views as Views

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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'asterism.data' has no attribute {name!r}")
