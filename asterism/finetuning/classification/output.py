"""Predicted labels as a table: `predictions.csv` and `predictions.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import UInt8
from torch import Tensor

from asterism.csv_text import comma_separated
from asterism.files import write_text

if TYPE_CHECKING:
    from asterism.finetuning.classification.classify import Classes

_SHOWN = 5  # classes with the highest scores


class ClassTable:
    """Collects the most probable classes of each image."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = []

    def add(self, key: str, image: UInt8[Tensor, "3 h w"], prediction: Classes) -> None:
        best = [{"label": name, "score": round(score, 6)} for name, score in prediction.top(_SHOWN)]
        self._rows.append({"image": key, **best[0], "best": best})

    def close(self) -> list[Path]:
        rows = [[row["image"], row["label"], row["score"]] for row in self._rows]
        written = {
            "predictions.csv": comma_separated([["image", "label", "score"], *rows]),
            "predictions.json": json.dumps(self._rows, indent=2, ensure_ascii=False) + "\n",
        }
        for name, content in written.items():
            write_text(self._folder / name, content)
        return [self._folder / name for name in written]
